"""Gives a rank a copy of the extension that DeepSpeed has compiled before: it locks the folder that it loads it from.

Imported by programs before DeepSpeed; DEEPSPEED_EXTENSIONS in their environment names the folder.
"""

import os
import shutil
import tempfile

if "DEEPSPEED_EXTENSIONS" in os.environ:
    _OWN = tempfile.mkdtemp(prefix="extensions-")
    shutil.copytree(os.environ["DEEPSPEED_EXTENSIONS"], _OWN, dirs_exist_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = _OWN
