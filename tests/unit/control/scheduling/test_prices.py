"""Prices: Clary's own, a user's own, and jobs whose types have no price."""

import json

import pytest

from clary.base.errors import ContractError, Fault
from clary.control.jobs.job_request import JobRequest
from clary.control.scheduling.catalogue import known_types
from clary.control.scheduling.prices import load_prices, parse_prices


def request(instance_type="ml.c5.xlarge", count=1, *, groups=()):
    if groups:
        members = [
            {"InstanceGroupName": f"g{index}", "InstanceType": name, "InstanceCount": count}
            for index, (name, count) in enumerate(groups)
        ]
        return JobRequest({"ResourceConfig": {"InstanceGroups": members}})
    return JobRequest({"ResourceConfig": {"InstanceType": instance_type, "InstanceCount": count}})


def parsed(**members):
    return parse_prices(json.dumps({"types": {}, **members}).encode(), source="own.json", default_spot_fraction=0.3)


def test_every_type_of_the_catalogue_has_a_price_or_is_listed_as_without_price():
    prices = load_prices()
    assert sorted([*prices.types, *prices.without_price]) == list(known_types())
    assert not set(prices.types) & set(prices.without_price)


def test_prices_grow_with_the_size_of_a_type():
    prices = load_prices().types
    for family, sizes in {
        "m5": ("large", "xlarge", "2xlarge", "4xlarge", "12xlarge", "24xlarge"),
        "p3": ("2xlarge", "8xlarge", "16xlarge"),
        "g5": ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "24xlarge", "48xlarge"),
    }.items():
        of_sizes = [prices[f"ml.{family}.{size}"].usd_per_hour for size in sizes]
        assert of_sizes == sorted(of_sizes)
    assert all(0.03 < price.usd_per_hour < 200 for price in prices.values())
    assert all(0.1 <= price.spot_fraction <= 0.9 for price in prices.values())


def test_a_job_costs_the_sum_of_its_hosts_and_names_the_source_of_the_prices():
    price = load_prices().of_job(request("ml.p3.2xlarge", 4))
    assert price.usd_per_hour == pytest.approx(4 * 3.825, rel=0.01)
    assert price.spot_fraction == 0.3
    assert price.source == "prices.json, us-east-1, 2026-08"
    assert price.notes == ()


def test_groups_are_added_up_and_their_spot_fractions_weighted_by_price():
    prices = parsed(
        types={
            "ml.a": {"usd_per_hour": 1.0, "spot_fraction": 0.5},
            "ml.b": {"usd_per_hour": 4.0, "spot_fraction": 0.25, "is_estimated": True},
        }
    )
    price = prices.of_job(request(groups=[("ml.a", 2), ("ml.b", 1)]))
    assert price.usd_per_hour == 6.0
    assert price.spot_fraction == pytest.approx((2 * 0.5 + 4 * 0.25) / 6)
    assert price.notes == ("the price of ml.b is an estimate",)


def test_a_type_without_a_price_leaves_the_job_without_a_price_and_is_named():
    price = load_prices().of_job(request(groups=[("ml.c5.xlarge", 2), ("local", 1)]))
    assert price.usd_per_hour is None
    assert price.spot_fraction == 0.3
    assert price.notes == ("no price is known for local: name one in a file of setting prices_file",)


def test_a_group_of_no_hosts_costs_nothing_and_causes_no_division_by_zero():
    price = load_prices().of_job(request("ml.c5.xlarge", 0))
    assert (price.usd_per_hour, price.spot_fraction) == (0, 0.3)


def test_a_user_s_own_file_overrides_prices_type_by_type(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps(
            {
                "region": "my cellar",
                "default_spot_fraction": 0.2,
                "types": {"local": {"usd_per_hour": 0.01}, "ml.c5.xlarge": {"usd_per_hour": 2, "spot_fraction": 1}},
            }
        )
    )
    prices = load_prices(str(path))
    local = prices.of_job(request("local"))
    assert (local.usd_per_hour, local.spot_fraction, local.source) == (0.01, 0.2, "mine.json, my cellar")
    assert prices.of_job(request("ml.c5.xlarge")).usd_per_hour == 2
    assert prices.of_job(request("ml.c5.2xlarge")).usd_per_hour == pytest.approx(0.408)
    assert prices.of_job(request("ml.nobody.knows")).spot_fraction == 0.2


def test_a_file_that_can_not_be_read_is_named_with_its_setting(tmp_path):
    with pytest.raises(ContractError, match=r"none.json: cannot be read: .*setting prices_file"):
        load_prices(str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "own.json, line 1, column 2: not valid JSON"),
        ('{\n"types": {\n"ml.a": }}', "own.json, line 3, column 9: not valid JSON"),
        (b"\xff\xfe", "own.json: expected UTF-8"),
        ("[]", "own.json: the file: expected an object, got a list"),
        ("{}", "own.json: types: expected an object, got nothing"),
        ('{"types": {}, "tpyes": {}}', "own.json: the file: unknown member 'tpyes'; known are about"),
        ('{"types": {"ml.a": 5}}', 'own.json: types."ml.a": expected an object, got 5'),
        ('{"types": {"ml.a": {}}}', 'own.json: types."ml.a".usd_per_hour: expected USD above 0'),
        ('{"types": {"ml.a": {"usd_per_hour": 0}}}', "got 0"),
        ('{"types": {"ml.a": {"usd_per_hour": -1}}}', "got -1"),
        ('{"types": {"ml.a": {"usd_per_hour": true}}}', "got True"),
        ('{"types": {"ml.a": {"usd_per_hour": "1"}}}', "got '1'"),
        ('{"types": {"ml.a": {"usd_per_hour": NaN}}}', "got nan"),
        ('{"types": {"ml.a": {"usd_per_hour": Infinity}}}', "got inf"),
        ('{"types": {"ml.a": {"usd_per_hour": 1e300}}}', "at most 1e+06, got 1e+300"),
        ('{"types": {"ml.a": {"usd_per_hour": [1]}}}', "got a list"),
        ('{"types": {"ml.a": {"usd": 1}}}', """types."ml.a": unknown member 'usd'; known are usd_per_hour"""),
        (
            '{"types": {"ml.a": {"usd_per_hour": 1, "spot_fraction": 1.1}}}',
            'types."ml.a".spot_fraction: expected a number',
        ),
        ('{"types": {"ml.a": {"usd_per_hour": 1, "is_estimated": 1}}}', "is_estimated: expected true or false, got 1"),
        ('{"types": {"ml.a": {"usd_per_hour": 1}, "ml.a": {"usd_per_hour": 2}}}', "'ml.a' appears twice"),
        (
            '{"types": {}, "default_spot_fraction": 0}',
            "default_spot_fraction: expected a number above 0, at most 1, got 0",
        ),
        ('{"types": {}, "without_price": "ml.a"}', "without_price: expected a list of instance types"),
        pytest.param('{"types": ' + "[" * 100_000, "not valid JSON", id="deep"),
    ],
)
def test_an_invalid_file_is_refused_with_line_or_member_and_the_expected_value(tmp_path, text, says):
    path = tmp_path / "own.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ContractError) as refused:
        load_prices(str(path))
    assert says in refused.value.message
    assert refused.value.fault is Fault.USER
