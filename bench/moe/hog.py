#!/usr/bin/env python3
"""A process that takes memory and gives it back, over and over: `hog.py BYTES`. It runs until it is killed."""

import mmap
import sys
import time

STEP_BYTES = 32 * 2**20
STEP_S = 0.125  # 256 MiB a second, as a program that loads its data
HOLD_S = 20.0


def main() -> None:
    most = int(sys.argv[1])
    while True:
        held = []
        for _ in range(most // STEP_BYTES):
            piece = mmap.mmap(-1, STEP_BYTES)
            for page in range(0, STEP_BYTES, mmap.PAGESIZE):
                piece[page] = 1
            held.append(piece)
            time.sleep(STEP_S)
        time.sleep(HOLD_S)
        del held
        time.sleep(HOLD_S)


if __name__ == "__main__":
    main()
