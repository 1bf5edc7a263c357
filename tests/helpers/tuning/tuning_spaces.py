"""Ranges of hyperparameters and questions to the search, drawn by Hypothesis."""

from hypothesis import strategies as st

from clary.control.tuning.parameter_space import Categorical, Continuous, Integer, Scaling
from clary.control.tuning.search import Observation, Question, propose

STRATEGIES = ("Random", "Bayesian", "Hyperband")  # strategies that draw at random; a grid enumerates
words = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FFF), min_size=1, max_size=8)


def _ordered(numbers):
    return st.tuples(numbers, numbers).map(sorted)


_POSITIVE = st.floats(1e-12, 1e12)
_BOUNDS = {
    Scaling.LINEAR: _ordered(st.floats(-1e12, 1e12)),
    Scaling.LOGARITHMIC: _ordered(_POSITIVE),
    Scaling.REVERSE_LOGARITHMIC: _ordered(st.floats(0, 1 - 1e-9)),
}


@st.composite
def continuous(draw, name="c"):
    scaling = draw(st.sampled_from(list(Scaling)))
    least, greatest = draw(_BOUNDS[scaling])
    return Continuous(name=name, least=least, greatest=greatest, scaling=scaling)


@st.composite
def integers(draw, name="i", most=2**53):
    scaling = draw(st.sampled_from([Scaling.LINEAR, Scaling.LOGARITHMIC]))
    least, greatest = draw(_ordered(st.integers(1 if scaling is Scaling.LOGARITHMIC else -most, most)))
    return Integer(name=name, least=least, greatest=greatest, scaling=scaling)


@st.composite
def categoricals(draw, name="t", most=6):
    values = draw(st.lists(words, min_size=1, max_size=most, unique=True))
    return Categorical(name=name, values=tuple(values))


@st.composite
def spaces(draw):
    """Draw one to four ranges of any kind."""
    kinds = draw(st.lists(st.sampled_from([continuous, integers, categoricals]), min_size=1, max_size=4))
    return tuple(draw(kind(f"p{place}")) for place, kind in enumerate(kinds))


@st.composite
def small_spaces(draw):
    """Draw ranges with at most 48 points in total."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=2))
    space = [Categorical(name=f"t{place}", values=tuple("abcd"[:size])) for place, size in enumerate(sizes)]
    least = draw(st.integers(-5, 5))
    space.append(Integer(name="i", least=least, greatest=least + draw(st.integers(0, 2)), scaling=Scaling.LINEAR))
    if draw(st.booleans()):
        space.append(Continuous(name="fixed", least=0.1, greatest=0.1, scaling=Scaling.LOGARITHMIC))
    return tuple(space)


def question(space, *, strategy="Bayesian", observations=(), seed=1, number=None, is_maximized=False):
    """Return a question for the next proposal."""
    return Question(
        strategy=strategy,
        space=space,
        is_maximized=is_maximized,
        observations=tuple(observations),
        seed=seed,
        number=len(observations) + 1 if number is None else number,
    )


def proposals(space, count, *, strategy="Bayesian", seed=1, value_of=lambda parameters: 0.0):
    """Return this many successive proposals; each trial ends before the next is proposed."""
    found = []
    observations = []
    for _ in range(count):
        found.append(propose(question(space, strategy=strategy, observations=observations, seed=seed)))
        observations.append(Observation(parameters=found[-1], value=value_of(found[-1]), is_over=True))
    return found
