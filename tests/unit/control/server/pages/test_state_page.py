"""The page `quarantine`: which numbers of entries it accepts."""

import pytest

from clary.base.errors import WireError
from clary.control.server.pages.state_page import change_quarantine, quarantine_page
from clary.testing.control_plane import ControlPlane


@pytest.fixture
async def services(tmp_path):
    async with ControlPlane.open(tmp_path) as plane:
        yield plane.services


@pytest.mark.parametrize("number", ["x", "", "-1", "1.5", "\u00b2", "9" * 19, "9" * 5000])
async def test_a_number_that_no_entry_can_have_is_refused(services, number):
    with pytest.raises(WireError, match="id is the number of an entry") as told:
        await quarantine_page(services, {"id": number})
    assert told.value.http_status == 400
    with pytest.raises(WireError, match="id is the number of an entry"):
        await change_quarantine(services, {"action": "drop", "id": number})


@pytest.mark.parametrize("number", ["3", "9" * 18])
async def test_a_number_without_an_entry_is_not_found(services, number):
    with pytest.raises(WireError) as told:
        await quarantine_page(services, {"id": number})
    assert told.value.http_status == 404
