"""Who is served next, who waits, who gives memory back: policies behind one interface, `base`."""
