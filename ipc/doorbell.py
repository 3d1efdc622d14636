"""The doorbell beside a ring: an eventfd that makes a sleeping reader look.

Owns: one file descriptor. Never knows: what lies in the ring. A ring tells the truth and the bell
only hurries: readers look at their rings on every step too, so a lost ring costs time and never
data. The supervisor creates all bells and passes their fds; the write to an eventfd also orders the
stores before it.
"""

import os


class Doorbell:
    """A level-triggered wake-up; pollable through `fileno`, inherited over exec by number."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        """Take over an inherited eventfd."""
        self._fd = fd

    @classmethod
    def create(cls) -> "Doorbell":
        """Make a new one, non-blocking, closed on exec unless passed on."""
        return cls(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))

    def ring(self) -> None:
        """Make the bell readable; ringing twice is ringing once."""
        os.eventfd_write(self._fd, 1)

    def clear(self) -> bool:
        """Make it unreadable again; return whether it had been rung."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            return False
        return True

    def fileno(self) -> int:
        """Return the fd, for pollers and `pass_fds`."""
        return self._fd

    def close(self) -> None:
        """Close the fd; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
