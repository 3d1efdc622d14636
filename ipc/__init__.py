"""How the processes of an engine share memory and talk; see README.md."""
