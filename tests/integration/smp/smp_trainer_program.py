"""transformers' own Trainer over SMP v1, as transformers up to 4.28 calls SMP; run by test_smp_trainer on two ranks."""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist


class Words(torch.utils.data.Dataset):
    """Rows of token ids; the label says whether the first id is large."""

    def __init__(self, number, seed):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, 200, (number, 12), generator=generator)
        self.labels = (self.ids[:, 0] > 100).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, place):
        mask = torch.ones(12, dtype=torch.long)
        return {"input_ids": self.ids[place], "attention_mask": mask, "labels": self.labels[place]}


def make_trainer(folder):
    import smdistributed.modelparallel.torch as smp

    smp.shutdown()
    smp.init()  # transformers calls `init` at import; here it gives this function a group
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    set_seed(1)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=200,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        num_train_epochs=3,
        learning_rate=3e-3,
        logging_steps=10,
        save_strategy="steps",
        save_steps=20,
        report_to=[],
        disable_tqdm=True,
        optim="adamw_torch",
        dataloader_pin_memory=False,
    )
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=Words(256, 0),
        eval_dataset=Words(64, 1),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )


def test_it_trains_saves_and_resumes_through_its_own_call_sites(rank, size):
    from clary_cuda_on_cpu import register

    register()  # the folder of a job makes torch call this
    folder = [tempfile.mkdtemp(prefix="clary-trainer-") if rank == 0 else None]
    dist.broadcast_object_list(folder)
    trainer = make_trainer(folder[0])
    from transformers.utils import is_sagemaker_mp_enabled

    assert is_sagemaker_mp_enabled()
    trainer.train()
    losses = [one["loss"] for one in trainer.state.log_history if "loss" in one]
    assert losses[-1] < losses[0] * 0.8, losses
    accuracy = trainer.evaluate()["eval_accuracy"]
    assert accuracy > 0.7, accuracy
    saved = Path(folder[0]) / "checkpoint-20"
    names = sorted(one.name for one in saved.iterdir())
    assert {"optimizer.pt_0", "optimizer.pt_1", "pytorch_model.bin", "user_content.pt"} <= set(names), names
    whole = torch.load(saved / "pytorch_model.bin", weights_only=False)
    assert set(whole) >= {"bert.embeddings.word_embeddings.weight", "classifier.weight"}

    again = make_trainer(folder[0])
    again.train(resume_from_checkpoint=str(saved))
    resumed = [one["loss"] for one in again.state.log_history if "loss" in one]
    torch.testing.assert_close(torch.tensor(resumed[-1]), torch.tensor(losses[-1]), atol=0.02, rtol=0.05)
    assert os.environ["SM_HP_MP_PARAMETERS"]
