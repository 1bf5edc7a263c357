"""The verdict on resumes, and the reason that it names."""

from dataclasses import replace

import pytest
from rehearsal_runs import NUM_SAMPLES, attempt, batch_of, loss_of, run, twin

from clary.control.rehearsal.certificate import Strike, Verdict, certify

STRIKES = (Strike(words="kill algo-1 at step 17", at_s=3.0),)
KILLED = "algo-1 was lost"


def certificate(*attempts, strikes=STRIKES, of_twin=None, **facts):
    return certify(of_twin or twin(), run(*attempts, **facts), strikes)


def test_a_resume_from_the_last_checkpoint_with_everything_restored_passes():
    made = certificate(attempt(1, 1, 18, end=KILLED), attempt(2, 16, 24), lost_s=1.5)
    assert made.verdict is Verdict.PASS
    assert (made.steps_lost, made.seconds_lost, made.redone_s) == (3, 2.0, 1.5)
    assert made.losses.num_equal == made.losses.num_compared == 24
    assert made.samples.is_whole
    shown = made.interruptions[0]
    assert (shown.last_step, shown.first_step, shown.lost_steps, shown.why) == ("18", "16", 3, KILLED)


def test_the_lost_steps_of_several_interruptions_are_added_up():
    made = certificate(
        attempt(1, 1, 8, end=KILLED),
        attempt(2, 6, 13, end=KILLED),
        attempt(3, 11, 12, end=KILLED),
        attempt(4, 11, 24),
    )
    assert (made.verdict, made.steps_lost) == (Verdict.PASS, 3 + 3 + 2)


def test_batches_that_are_drawn_only_to_skip_them_are_not_counted():
    made = certificate(attempt(1, 1, 18, end=KILLED), attempt(2, 16, 24, skipped=3))
    assert made.verdict is Verdict.PASS


def test_a_loss_that_diverges_though_samples_are_right_blames_the_optimizer():
    def forgotten(step):
        return loss_of(step) * (1.1 if step > 16 else 1)

    made = certificate(attempt(1, 1, 18, end=KILLED), attempt(2, 16, 24, loss=forgotten))
    assert made.verdict is Verdict.FAIL
    assert "state of the optimizer" in made.reason
    assert "parts from the twin's at step 17, the second printed after the resume" in made.reason
    assert "optimizer.state_dict()" in made.advice


def test_a_pass_over_the_data_that_restarts_blames_the_sampler_whatever_the_loss():
    def forgotten(step):
        return batch_of(step - 15)

    made = certificate(attempt(1, 1, 18, end=KILLED), attempt(2, 16, 24, batch=forgotten, loss=lambda step: 9.0))
    assert made.verdict is Verdict.FAIL
    assert "sampler's place in the data is not restored" in made.reason
    assert (made.samples.num_twice, made.samples.num_never) == (12, 12)
    assert made.samples.first_other_step == 16


def test_steps_that_restart_despite_restored_files_blame_an_unread_checkpoint():
    made = certificate(attempt(1, 1, 18, end=KILLED), attempt(2, 1, 24))
    assert made.verdict is Verdict.FAIL
    assert "1 file was restored: the checkpoint is never read" in made.reason
    assert made.steps_lost == 18


def test_steps_that_restart_fail_only_if_a_checkpoint_could_have_been_read():
    anew = (attempt(1, 1, 3, end=KILLED, sets=0), attempt(2, 1, 24, restored=0))
    assert certificate(*anew).verdict is Verdict.INCONCLUSIVE
    assert "no checkpoint had been stored yet" in certificate(*anew).reason
    never = certificate(*anew, of_twin=twin(sets=0))
    assert never.verdict is Verdict.FAIL
    assert "writes no checkpoint" in never.reason
    none = certificate(*anew, has_checkpoints=False)
    assert none.verdict is Verdict.FAIL
    assert "has no checkpoints" in none.reason


def test_steps_that_no_attempt_did_fail_the_rehearsal():
    made = certificate(attempt(1, 1, 12, end=KILLED), attempt(2, 16, 24))
    assert made.verdict is Verdict.FAIL
    assert "steps between 12 and 16 were done in no attempt" in made.reason


def test_an_end_before_the_last_step_fails():
    made = certificate(attempt(1, 1, 12, end=KILLED), attempt(2, 13, 12))
    assert made.verdict is Verdict.FAIL
    assert "no step was printed any more" in made.reason


def test_a_job_that_does_not_recover_fails_with_its_reason():
    made = certificate(attempt(1, 1, 12, end=KILLED), status="Failed", failure_reason="AlgorithmError: no such file")
    assert made.verdict is Verdict.FAIL
    assert "did not come back: it ended Failed: AlgorithmError: no such file" in made.reason


@pytest.mark.parametrize(
    ("of_twin", "strikes", "words"),
    [
        (replace(twin(), status="Failed", failure_reason="boom"), STRIKES, "the twin ended Failed without any fault"),
        (run(attempt(1, 1, 9, end=KILLED), attempt(2, 9, 24)), STRIKES, "the twin was interrupted itself"),
        (None, (Strike(words="kill algo-1 at step 99", at_s=None, note="it had ended"),), "it never struck"),
        (run(attempt(1, 1, 0)), STRIKES, "no step was found"),
    ],
)
def test_a_run_without_evidence_is_inconclusive(of_twin, strikes, words):
    made = certificate(attempt(1, 1, 18, end=KILLED), attempt(2, 16, 24), of_twin=of_twin, strikes=strikes)
    assert made.verdict is Verdict.INCONCLUSIVE
    assert words in made.reason


def test_noise_between_two_runs_is_measured_before_the_fault_and_tolerated_after_it():
    def noisy(step):
        return loss_of(step) * (1 + 0.001 * (-1) ** step)

    made = certificate(attempt(1, 1, 18, end=KILLED, loss=noisy), attempt(2, 16, 24, loss=noisy))
    assert made.verdict is Verdict.PASS
    assert made.losses.num_equal < made.losses.num_compared
    forgotten = attempt(2, 16, 24, loss=lambda step: noisy(step) * 1.1)
    assert certificate(attempt(1, 1, 18, end=KILLED, loss=noisy), forgotten).verdict is Verdict.FAIL


def test_runs_that_differ_before_any_fault_are_inconclusive():
    wild = attempt(1, 1, 18, end=KILLED, loss=lambda step: loss_of(step) * 2)
    made = certificate(wild, attempt(2, 16, 24))
    assert made.verdict is Verdict.INCONCLUSIVE
    assert "before any fault" in made.reason


def test_runs_that_differ_without_a_resume_are_inconclusive():
    paused = Strike(words="pause algo-1 at step 9", at_s=2.0)
    made = certificate(attempt(1, 1, 24, loss=lambda step: loss_of(step) * 1.1), strikes=(paused,))
    assert made.verdict is Verdict.INCONCLUSIVE
    assert "nothing was resumed before" in made.reason
    assert certificate(attempt(1, 1, 24), strikes=(paused,)).verdict is Verdict.PASS


def test_a_script_without_a_data_loader_is_judged_by_its_losses_alone():
    bare = [replace(item, records=()) for item in (attempt(1, 1, 18, end=KILLED), attempt(2, 16, 24))]
    of_twin = run(replace(attempt(1, 1, 24), records=()))
    made = certificate(*bare, of_twin=of_twin)
    assert made.verdict is Verdict.PASS
    assert made.samples.words == "not seen (no torch DataLoader)"
    assert made.steps_lost == 3


def test_an_order_that_differs_in_each_run_is_compared_by_whole_passes():
    def shuffled(seed):
        return lambda step: [(sample * seed + seed) % NUM_SAMPLES for sample in batch_of(step)]

    good = certificate(
        attempt(1, 1, 18, end=KILLED, batch=shuffled(5)), attempt(2, 16, 24, batch=shuffled(5)), of_twin=twin()
    )
    assert (good.verdict, good.samples.is_order_repeatable) == (Verdict.PASS, False)
    anew = attempt(2, 16, 24, batch=lambda step: shuffled(5)(step - 15))
    bad = certificate(attempt(1, 1, 18, end=KILLED, batch=shuffled(5)), anew)
    assert bad.verdict is Verdict.FAIL
    assert "sampler" in bad.reason


def test_steps_that_are_printed_rarely_still_give_the_exact_loss_of_steps():
    made = certificate(attempt(1, 1, 18, end=KILLED, every=4), attempt(2, 16, 24, every=4), of_twin=twin(every=4))
    assert (made.verdict, made.steps_lost) == (Verdict.PASS, 3)


def test_the_first_printed_step_is_not_taken_for_the_first_step():
    made = certificate(attempt(1, 1, 9, end=KILLED, every=8), attempt(2, 6, 24, every=8), of_twin=twin(every=8))
    assert (made.verdict, made.steps_lost) == (Verdict.PASS, 4)


def test_final_metrics_of_twin_and_rehearsal_are_listed_in_pairs():
    made = certify(
        replace(twin(), metrics={"loss": 0.5}),
        run(attempt(1, 1, 18, end=KILLED), attempt(2, 16, 24), metrics={"loss": 0.25, "acc": 1.0}),
        STRIKES,
    )
    assert made.metrics == {"acc": (None, 1.0), "loss": (0.5, 0.25)}


def test_a_rank_without_sample_records_is_not_compared_and_does_not_fail():
    def with_other_rank(item):
        return replace(item, records=(*item.records, replace(item.records[0], rank=1)))

    made = certificate(
        with_other_rank(attempt(1, 1, 18, end=KILLED)),
        attempt(2, 16, 24),
        of_twin=run(with_other_rank(attempt(1, 1, 24))),
    )
    assert made.verdict is Verdict.PASS
    assert made.samples.words == "not compared (rank 1 of attempt 2 wrote nothing down)"


FULL = Strike(words="fill the disk of algo-1 at step 7", at_s=3.0, kind="disk-full")
ENOSPC = "No space left on device: the disk of this host is full (0 bytes free for /opt/ml)"


def test_a_program_that_dies_of_a_full_disk_is_blamed_itself():
    reason = f"AlgorithmError: {ENOSPC}: OSError: [Errno 28], exit code: 1"
    made = certificate(attempt(1, 1, 10), strikes=(FULL,), status="Failed", failure_reason=reason)
    assert made.verdict is Verdict.FAIL
    assert made.reason.startswith("the program itself died of the full disk")
    assert reason in made.reason
    assert "catch OSError (ENOSPC)" in made.advice


def test_a_program_that_exits_with_0_on_a_full_disk_gets_advice():
    reason = f"ClientError: {ENOSPC}: results may be incomplete"
    made = certificate(attempt(1, 1, 24), strikes=(FULL,), status="Failed", failure_reason=reason)
    assert made.verdict is Verdict.FAIL
    assert made.reason.startswith("the program ended on a full disk")
    assert "a length" in made.advice


@pytest.mark.parametrize(
    ("strike", "reason"),
    [
        (replace(FULL, at_s=None), f"AlgorithmError: {ENOSPC}"),
        (STRIKES[0], f"AlgorithmError: {ENOSPC}"),
        (FULL, "AlgorithmError: ValueError: no number"),
    ],
)
def test_other_failures_are_not_blamed_on_the_full_disk(strike, reason):
    made = certificate(attempt(1, 1, 10), strikes=(strike,), status="Failed", failure_reason=reason)
    assert made.reason.startswith("the job did not come back")


@pytest.mark.parametrize(
    ("failed_host", "failed_at_s", "is_blamed"),
    [
        ("algo-1", 4.0, True),
        ("algo-1", 20.0, True),
        ("algo-1", 60.0, False),
        ("algo-2", 4.0, False),
        ("", None, True),
    ],
)
def test_a_full_disk_elsewhere_or_long_after_the_fault_is_not_blamed_on_the_fault(failed_host, failed_at_s, is_blamed):
    strike = replace(FULL, hosts=("algo-1",), length_s=10.0)
    reason = f"AlgorithmError: {ENOSPC}: OSError: [Errno 28], exit code: 1"
    made = certificate(
        attempt(1, 1, 10),
        strikes=(strike,),
        status="Failed",
        failure_reason=reason,
        failed_host=failed_host,
        failed_at_s=failed_at_s,
    )
    assert made.reason.startswith("the program itself died of the full disk") == is_blamed


def test_a_program_that_continues_while_its_disk_is_full_passes():
    made = certificate(attempt(1, 1, 24), strikes=(FULL,))
    assert (made.verdict, made.interruptions) == (Verdict.PASS, ())


def test_a_twin_whose_disk_is_too_small_gets_advice():
    small = run(attempt(1, 1, 10), name="twin", status="Failed", failure_reason=f"AlgorithmError: {ENOSPC}")
    never = replace(FULL, at_s=None)
    made = certificate(of_twin=small, strikes=(never,), status="never created")
    assert made.verdict is Verdict.INCONCLUSIVE
    assert "larger --disk-size" in made.advice
    assert certificate(of_twin=small, status="never created").advice == "make the job run first"
