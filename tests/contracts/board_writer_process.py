"""A process that publishes one page after the other, every field of a page the same number.

python board_writer_process.py BOARD_FILE
"""

import sys
from pathlib import Path

import numpy as np

from ipc.board import BoardWriter
from ipc.segment import Segment

DTYPE = np.dtype([("numbers", np.uint64, (4096,))])


def main(path: str) -> None:
    """Publish until killed."""
    writer = BoardWriter(Segment.open(Path(path)), DTYPE, epoch=1)
    number = 0
    while True:
        number += 1
        writer.page["numbers"] = number
        writer.publish(number)


if __name__ == "__main__":
    main(*sys.argv[1:])
