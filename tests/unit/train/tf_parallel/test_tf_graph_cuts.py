"""Graphs cut over ranks, without TensorFlow: ranks that exchange messages compute the values of a single rank."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clary.train.tf_parallel.graphs.levels import find_levels, held_back
from clary.train.tf_parallel.graphs.nodes import Graph, Node, Output
from clary.train.tf_parallel.graphs.order import plan_order
from clary.train.tf_parallel.graphs.timetable import make_timetable
from clary.train.tf_parallel.graphs.work import find_work, own_demands

CHAIN = Graph(
    [
        Node("x", "Placeholder", is_fed=True),
        Node("read0", "ReadVariableOp", part=0, has_effect=False),
        Node("first", "MatMul", (Output("x", 0), Output("read0", 0)), part=0),
        Node("read1", "ReadVariableOp", part=1),
        Node("second", "MatMul", (Output("first", 0), Output("read1", 0)), part=1),
        Node("loss", "Mean", (Output("second", 0),)),
        Node("dsecond", "Mul", (Output("loss", 0), Output("second", 0)), part=1),
        Node("dfirst", "Mul", (Output("dsecond", 0), Output("first", 0)), part=0),
    ]
)


def test_a_chain_has_the_levels_of_a_pipeline():
    assert find_levels(CHAIN) == {
        "x": 0,
        "read0": 0,
        "first": 0,
        "read1": 1,  # at a late level, next to its use
        "second": 1,
        "loss": 2,
        "dsecond": 2,
        "dfirst": 3,
    }


def test_nodes_are_sorted_in_any_input_order_and_joins_are_skipped():
    graph = Graph(
        [
            Node("late", "Identity", (Output("x", 0),), controls=("join",)),
            Node("join", "NoOp", controls=("change",)),
            Node("change", "AssignVariableOp", (Output("x", 0),), has_effect=True),
            Node("x", "Placeholder", is_fed=True),
        ]
    )
    assert graph["late"].controls == ("change",)
    assert list(graph.nodes).index("change") < list(graph.nodes).index("late")


def test_cycles_and_unknown_nodes_are_refused():
    with pytest.raises(ValueError, match="waits for itself"):
        Graph([Node("a", "Add", (Output("b", 0),)), Node("b", "Add", (Output("a", 0),))])
    with pytest.raises(ValueError, match="which is not in the graph"):
        Graph([Node("a", "Add", (Output("nobody", 0),))])


def test_digests_depend_on_parts_and_inputs():
    def digest(part, source):
        nodes = [
            Node("x", "P", is_fed=True),
            Node("z", "P", is_fed=True),
            Node("y", "Add", (Output(source, 0),), part=part),
        ]
        return Graph(nodes).digest(["y"])

    assert digest(0, "x") == digest(0, "x")
    nodes = [Node("capture/7", "P", is_fed=True), Node("y", "Add", (Output("capture/7", 0),))]
    others = [Node("capture/9", "P", is_fed=True), Node("y", "Add", (Output("capture/9", 0),))]
    assert Graph(nodes).digest(["y", "capture/7"]) == Graph(others).digest(["y", "capture/9"])
    assert len({digest(0, "x"), digest(1, "x"), digest(0, "z")}) == 3


def test_a_variable_that_is_read_early_and_written_late_delays_the_next_microbatch():
    graph = Graph(
        [
            Node("read", "ReadVariableOp", part=0),
            Node("use", "Mul", (Output("read", 0),), part=0),
            Node("there", "Mul", (Output("use", 0),), part=1),
            Node("write", "AssignVariableOp", (Output("there", 0),), part=0, has_effect=True),
        ]
    )
    levels = find_levels(graph)
    assert held_back(graph, levels, {"read": 1, "write": 1}) == [(0, 0, 2)]
    assert held_back(graph, levels, {"read": 1}) == []


def test_ranks_run_only_the_nodes_that_they_or_others_need():
    results = [[Output("loss", 0), Output("dfirst", 0)], [Output("loss", 0)]]
    demands = [own_demands(CHAIN, wanted) for wanted in results]
    assert [list(map(str, one)) for one in demands] == [["dfirst:0", "second:0"], ["second:0"]]
    works = [find_work(CHAIN, rank, demands, wanted=results[rank]) for rank in (0, 1)]
    assert works[0].messages == works[1].messages
    assert [(str(one.output), one.source, one.target) for one in works[0].messages] == [
        ("dsecond:0", 1, 0),
        ("first:0", 0, 1),
        ("second:0", 1, 0),
    ]
    assert works[1].runs == {"read1", "second", "loss", "dsecond", "x"} - {"x"}


@st.composite
def graphs(draw):
    """Return a graph of any shape over some parts, and the results that each rank requests."""
    num_parts = draw(st.integers(1, 4))
    generator = random.Random(draw(st.integers(0, 10_000)))
    nodes = [Node("x0", "Placeholder", is_fed=True), Node("x1", "Placeholder", is_fed=True)]
    for number in range(draw(st.integers(1, 25))):
        inputs = tuple(Output(one.name, 0) for one in generator.sample(nodes, generator.randint(1, min(3, len(nodes)))))
        part = generator.choice([None, *range(num_parts)])
        nodes.append(Node(f"n{number}", "Sum", inputs, part=part, has_effect=generator.random() < 0.2))
    names = [one.name for one in nodes]
    wanted = [[Output(name, 0) for name in generator.sample(names, min(3, len(names)))] for _ in range(num_parts)]
    return Graph(nodes), wanted


def value_alone(graph, name, microbatch):
    node = graph[name]
    if node.is_fed:
        return {"x0": 3, "x1": 5}[name] + microbatch
    return (
        1 + sum(value_alone(graph, one.node, microbatch) * (7 + place) for place, one in enumerate(node.inputs)) % 9973
    )


@settings(max_examples=150, deadline=None)
@given(graphs(), st.integers(1, 4), st.sampled_from(["simple", "interleaved"]), st.integers(1, 5), st.integers(0, 4))
def test_ranks_that_follow_their_orders_compute_the_values_of_a_single_rank(
    made, num_microbatches, policy, active, last
):
    graph, wanted = made
    num_parts = len(wanted)
    levels = find_levels(graph)
    effects = [Output(node.name, 0) for node in graph.nodes.values() if node.has_effect and node.part is None]
    wanted = [[*one, *effects] for one in wanted]
    demands = [own_demands(graph, one) for one in wanted]
    works = [find_work(graph, rank, demands, wanted=wanted[rank]) for rank in range(num_parts)]
    tables = [make_timetable(graph, works[rank], levels, wanted[rank], rank) for rank in range(num_parts)]
    orders = plan_order(
        [table.share(()) for table in tables], num_microbatches, policy=policy, last_forward=last, max_active=active
    )
    sent: dict[tuple[int, int], int] = {}
    values: list[dict[tuple[str, int], int]] = [
        {
            (name, number): value_alone(graph, name, number)
            for name in ("x0", "x1")
            for number in range(num_microbatches)
        }
        for _ in range(num_parts)
    ]
    ran: list[tuple[str, int]] = []
    left = [list(order) for order in orders]
    while any(left):
        is_stuck = True
        for rank, order in enumerate(left):
            while order:
                task = order[0]
                receives = tables[rank].receives.get(task.level, ())
                if any((one.number, task.microbatch) not in sent for one in receives):
                    break
                for one in receives:
                    values[rank][one.output.node, task.microbatch] = sent[one.number, task.microbatch]
                for name in graph.nodes:
                    if name in works[rank].runs and levels[name] == task.level and not graph[name].is_fed:
                        inputs = [values[rank][one.node, task.microbatch] for one in graph[name].inputs]
                        total = sum(one * (7 + place) for place, one in enumerate(inputs)) % 9973
                        values[rank][name, task.microbatch] = 1 + total
                        if graph[name].part is not None:
                            ran.append((name, task.microbatch))
                for one in tables[rank].sends.get(task.level, ()):
                    sent[one.number, task.microbatch] = values[rank][one.output.node, task.microbatch]
                order.pop(0)
                is_stuck = False
        assert not is_stuck, "ranks wait for each other"
    assert len(ran) == len(set(ran)), "an operation of the model ran twice"
    for node in graph.nodes.values():
        if node.has_effect and node.part is not None:
            assert all((node.name, number) in ran for number in range(num_microbatches)), "an effect did not happen"
    for rank, outputs in enumerate(wanted):
        for output in outputs:
            for number in range(num_microbatches):
                assert values[rank][output.node, number] == value_alone(graph, output.node, number)


def chain_orders(policy, num_microbatches, active):
    wanted = [[Output("loss", 0), Output("dfirst", 0)], [Output("loss", 0), Output("dsecond", 0)]]
    levels, demands = find_levels(CHAIN), [own_demands(CHAIN, one) for one in wanted]
    shares = []
    for rank in (0, 1):
        work = find_work(CHAIN, rank, demands, wanted=wanted[rank])
        shares.append(make_timetable(CHAIN, work, levels, wanted[rank], rank).share(()))
    return plan_order(shares, num_microbatches, policy=policy, last_forward=1, max_active=active)


def test_simple_has_all_forward_passes_first_and_interleaved_alternates():
    def words(order, last_forward=1):
        return " ".join(f"{'F' if task.level <= last_forward else 'B'}{task.microbatch}" for task in order)

    assert words(chain_orders("simple", 3, 9)[1]) == "F0 F1 F2 B0 B1 B2"
    assert words(chain_orders("interleaved", 3, 9)[1]) == "F0 B0 F1 B1 F2 B2"


def test_active_microbatches_limit_the_number_in_progress():
    for active in (1, 2, 3):
        for order in chain_orders("simple", 4, active):
            under_way, most = set(), 0
            last_level = max(task.level for task in order)
            for task in order:
                under_way.add(task.microbatch)
                most = max(most, len(under_way))
                if task.level == last_level:
                    under_way.discard(task.microbatch)
            assert most <= active
