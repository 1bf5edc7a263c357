"""Gives each rank its own copy of DeepSpeed's compiled extension, because loading locks the extension's folder.

Programs import this module before DeepSpeed; DEEPSPEED_EXTENSIONS in their environment names the folder.
"""

import os
import shutil
import tempfile

if "DEEPSPEED_EXTENSIONS" in os.environ:
    _OWN = tempfile.mkdtemp(prefix="extensions-")
    shutil.copytree(os.environ["DEEPSPEED_EXTENSIONS"], _OWN, dirs_exist_ok=True)
    os.environ["TORCH_EXTENSIONS_DIR"] = _OWN
