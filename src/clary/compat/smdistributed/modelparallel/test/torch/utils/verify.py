"""`dump_model`, which scripts import for comparisons of models and never call."""

from __future__ import annotations

from typing import Any, NoReturn


def dump_model(*_args: Any, **_kwargs: Any) -> NoReturn:
    """Raise an error that names the calls that write a model.

    Raises: NotImplementedError: no public script calls it, so its effect is unknown.
    """
    raise NotImplementedError(
        "dump_model belongs to tests of the original library, and nothing public says what it writes: write the model "
        "with smp.save_checkpoint(path, tag, partial=False, model=model), or torch.save(model.state_dict(), path)"
    )
