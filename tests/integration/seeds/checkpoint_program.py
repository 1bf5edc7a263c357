"""Program that continues from the newest number in the checkpoint folder, and writes the next ones."""

import json
import os

FOLDER = "/opt/ml/checkpoints"
found = sorted(os.listdir(FOLDER))
begin = int(found[-1].removesuffix(".txt")) + 1 if found else 0
for step in range(begin, begin + 3):
    with open(os.path.join(FOLDER, f"{step:04}.txt"), "w") as file:
        file.write(f"step {step}\n")
print("facts: " + json.dumps({"found": found, "begin": begin}), flush=True)
