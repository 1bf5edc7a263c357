"""One rank of `horovod.run`: runs the pickled function, and writes its result to a file.

python -m horovod.runner.function_rank FOLDER
"""

from __future__ import annotations

import os
import pickle
import sys


def main() -> None:
    """Run the function that is stored in the folder named by the first argument."""
    folder = sys.argv[1]
    with open(os.path.join(folder, "function"), "rb") as file:
        func, args, kwargs = pickle.load(file)  # noqa: S301 - written by the caller of horovod.run
    result = func(*args, **kwargs)
    with open(os.path.join(folder, f"result.{os.environ['HOROVOD_RANK']}"), "wb") as file:
        pickle.dump(result, file)


if __name__ == "__main__":
    main()
