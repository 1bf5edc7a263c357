"""The service's own pages, served by a control plane or by single parts of one."""

from types import SimpleNamespace

from clary.base.errors import ObjectStoreError
from clary.contract.launch_plan import Credentials
from clary.control.reconcile.desks.rehearsal_desk import RehearsalDesk
from clary.control.reconcile.desks.rehearsal_shelf import RehearsalShelf
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.gateways.training_gateway import TrainingGateway
from clary.control.server.actions.rehearsal_actions import RehearsalActions
from clary.control.server.authorization import Authorizer
from clary.control.server.clary_handler import ClaryHandler
from clary.control.server.edge.access import Access
from clary.control.server.edge.guesses import GuessLimiter
from clary.control.server.edge.sessions import Sessions
from clary.control.server.edge.sign_in import SignIn
from clary.control.server.pages.checkpoints_page import CheckpointPages
from clary.control.server.pages.downloads_page import DownloadsPage
from clary.control.server.pages.metrics_page import MetricsPage
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.stragglers_page import StragglerPages
from clary.control.server.pages.tuning_page import TuningPages
from clary.control.server.routing import Parts

OWNER, SCRAPER = "owner-token", "metrics-token"
KEY = Credentials(access_key_id="K", secret_access_key="S")
NO_MACHINE = SimpleNamespace(facts=lambda: None)
MOST_BYTES = 1 << 23


async def no_backup():
    return None


async def no_store(*args, **options):
    raise ObjectStoreError("the object store is away")


class FewParts:
    """The pages on parts that a test provides; `handle` serves requests with the owner's token, or raises WireError."""

    def __init__(self, services=None, *, sessions=None, metrics_page="token", admin_token="token", **given):
        parts = dict.fromkeys(Parts.__dataclass_fields__) | {
            "services": services,
            "machine": NO_MACHINE,
            "stragglers": StragglerPages(services),
            "tuning": TuningPages(services),
            "rehearsals": SimpleNamespace(facts=lambda job: {}),
            "engine": "local",
            "shared": lambda has_network: (),
        }
        self.parts = Parts(**parts | given)
        authorizer = Authorizer(
            self.parts.agents,
            self.parts.pools,
            self.parts.training,
            Access(sessions, admin_token=admin_token),
            metrics_token="token",
            metrics_page=metrics_page,
            max_body_bytes=MOST_BYTES,
            boxes=self.parts.boxes,
        )
        self.handler = ClaryHandler(self.parts, authorizer, GuessLimiter(SimpleNamespace(monotonic=lambda: 0.0)))
        self.handle = self.handler.answer


class OwnPages:
    """Handles a request as the listener does: first the gate, then the handler."""

    def __init__(self, plane, folder, *, metrics_page="token", boxes=None):
        samples = SampleGateway(plane.store.series, plane.clock)
        training = TrainingGateway(plane.hub, plane.store.training, plane.store, plane.clock)
        shelf = RehearsalShelf(plane.store.documents("rehearsals"), folder / "rehearsals")
        desk = RehearsalDesk(shelf, plane.hub, plane.clock, home=folder, grace_s=1.0)
        faults = SimpleNamespace(refusals=dict, largest_disk_bytes=lambda: 0)
        client = SimpleNamespace(request=no_store)
        guesses = GuessLimiter(plane.clock)
        self.sessions = Sessions(b"key", folder / "revoked", plane.clock)
        parts = Parts(
            services=plane.services,
            agents=plane.gateway,
            pools=plane.pool_gateway,
            samples=samples,
            training=training,
            market=plane.market,
            backups=SimpleNamespace(failure="", backups=None, make=no_backup),
            machine=NO_MACHINE,
            metrics=MetricsPage(plane.hub, samples, plane.clock),
            checkpoints=CheckpointPages(client),
            downloads=DownloadsPage(client, credentials=KEY, region="r", clock=plane.clock),
            stragglers=StragglerPages(plane.services),
            tuning=TuningPages(plane.services),
            cluster=None,
            rehearsals=RehearsalPages(plane.services, desk, faults),
            strikes=RehearsalActions(faults),
            sign_in=SignIn(self.sessions, admin_token=OWNER, guesses=guesses),
            shared=lambda has_network: (),
            boxes=boxes,
        )
        authorizer = Authorizer(
            plane.gateway,
            plane.pool_gateway,
            training,
            Access(self.sessions, admin_token=OWNER),
            metrics_token=SCRAPER,
            metrics_page=metrics_page,
            max_body_bytes=MOST_BYTES,
            boxes=boxes,
        )
        self.handler = ClaryHandler(parts, authorizer, guesses)

    async def answer(self, request):
        """Return the response to one request, and the seconds for which it is delayed."""
        verdict = self.handler.admit(request)
        if hasattr(verdict, "answer"):
            return verdict.answer, verdict.delay_s
        return await self.handler.handle(request), 0.0
