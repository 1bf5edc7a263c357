"""A debugger rule written by a user."""

from smdebug.rules import Rule


class LossBelow(Rule):
    """Fires once the loss is below a limit."""

    def __init__(self, base_trial, limit="1"):
        super().__init__(base_trial)
        self.limit = float(limit)

    def invoke_at_step(self, step):
        """Return whether the loss is below the limit."""
        return bool(self.base_trial.tensor("MSELoss_output_0").value(step).mean() < self.limit)
