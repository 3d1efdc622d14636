"""A process that does nothing but write numbered frames into a ring, as fast as readers allow.

python ring_writer_process.py RING_FILE DOORBELL_FD FIRST_NUMBER
"""

import sys
from pathlib import Path

from ipc.doorbell import Doorbell
from ipc.ring import RingWriter
from ipc.segment import Segment


def main(path: str, doorbell_fd: str, first_number: str) -> None:
    """Write until killed; a frame is its number, then that many (mod 97) bytes of it."""
    writer = RingWriter(Segment.open(Path(path)), [Doorbell(int(doorbell_fd))])
    number = int(first_number)
    while True:
        if writer.send([number.to_bytes(8, "little"), bytes([number % 256]) * (number % 97)]):
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
