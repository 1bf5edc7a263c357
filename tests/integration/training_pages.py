"""The console's page of a job's training."""

from __future__ import annotations

import json
import urllib.request

from clary.control.state_folder import StateFolder


def page_of(service, name, page="", kind=dict):
    """Return the page of a job, fetched as the command line fetches it."""
    folder = StateFolder(service.home)
    url = f"{folder.read_service_record().url}/clary/v1/jobs/{name}" + (f"/{page}" if page else "")
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {folder.load_secrets().admin_token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        body = answer.read()
    return json.loads(body) if kind is dict else body
