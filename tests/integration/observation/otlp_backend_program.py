"""Program that serves MLflow's OTLP endpoint on its own database; run by SDK v3's environment.

Its one argument is a folder. Prints its port, then answers each line of JSON with one line: `check` parses a body
strictly by OpenTelemetry's schema of an export and returns it; `trace` returns the stored spans of a trace.
"""

import base64
import json
import os
import socket
import sys
import threading
import time

URI = f"sqlite:///{sys.argv[1]}/mlflow.db"
os.environ |= {
    "_MLFLOW_SERVER_FILE_STORE": URI,
    "_MLFLOW_SERVER_ARTIFACT_ROOT": f"{sys.argv[1]}/artifacts",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

import mlflow  # noqa: E402
import uvicorn  # noqa: E402
from fastapi import FastAPI  # noqa: E402
from google.protobuf.json_format import MessageToDict, ParseDict  # noqa: E402
from mlflow.server.handlers import _get_tracking_store  # noqa: E402
from mlflow.server.otel_api import otel_router  # noqa: E402
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: E402

IDS = ("traceId", "spanId", "parentSpanId")  # hexadecimal in OTLP, base64 in protobuf's JSON


def with_ids(body, change):
    """Return a body with its identifiers converted to another encoding."""
    body = json.loads(json.dumps(body))
    for resource in body["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                span.update({name: change(span[name]) for name in IDS if name in span})
    return body


def check(body):
    """Parse a body strictly by the schema and return it; a member that the schema lacks is an error."""
    given = with_ids(body, lambda text: base64.b64encode(bytes.fromhex(text)).decode())
    message = ParseDict(given, ExportTraceServiceRequest())
    again = ExportTraceServiceRequest.FromString(message.SerializeToString())
    return with_ids(
        MessageToDict(again, use_integers_for_enums=True), lambda text: base64.b64decode(text, validate=True).hex()
    )


def trace(trace_id):
    """Return the spans of a trace as MLflow has stored them."""
    return [
        {
            "name": span.name,
            "id": span.span_id,
            "parent": span.parent_id,
            "start": span.start_time_ns,
            "end": span.end_time_ns,
            "status": [span.status.status_code.value, span.status.description],
            "attributes": dict(span.attributes),
        }
        for span in mlflow.get_trace(f"tr-{trace_id}").data.spans
    ]


def main():
    """Serve until the input ends."""
    mlflow.set_tracking_uri(URI)
    _get_tracking_store()
    application = FastAPI()
    application.include_router(otel_router)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.05)
    print(json.dumps(listening.getsockname()[1]), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = check(asked["check"]) if "check" in asked else trace(asked["trace"])
        print(json.dumps(answer), flush=True)
    server.should_exit = True
    thread.join()


main()
