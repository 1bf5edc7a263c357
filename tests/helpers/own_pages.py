"""The service's own pages over a control plane: every part is the real one, but for the object store and the faults."""

from types import SimpleNamespace

from clary.base.errors import ObjectStoreError
from clary.contract.launch_plan import Credentials
from clary.control.reconcile.desks.rehearsal_desk import RehearsalDesk
from clary.control.reconcile.desks.rehearsal_shelf import RehearsalShelf
from clary.control.reconcile.gateways.sample_gateway import SampleGateway
from clary.control.reconcile.gateways.training_gateway import TrainingGateway
from clary.control.server.actions.rehearsal_actions import RehearsalActions
from clary.control.server.actions.spot_actions import SpotRoutes
from clary.control.server.agent_routes import AgentRoutes
from clary.control.server.clary_handler import ClaryHandler
from clary.control.server.console_routes import ConsoleRoutes
from clary.control.server.edge.access import Access
from clary.control.server.edge.guesses import GuessLimiter
from clary.control.server.edge.sessions import Sessions
from clary.control.server.edge.sign_in import SignIn
from clary.control.server.pages.checkpoints_page import CheckpointRoutes
from clary.control.server.pages.downloads_page import DownloadsPage
from clary.control.server.pages.metrics_page import MetricsPage
from clary.control.server.pages.rehearsals_page import RehearsalPages
from clary.control.server.pages.state_page import StateRoutes
from clary.control.server.people_routes import PeopleRoutes
from clary.control.server.pool_routes import PoolRoutes
from clary.control.server.status_routes import StatusRoutes

OWNER, SCRAPER = "owner-token", "metrics-token"
KEY = Credentials(access_key_id="K", secret_access_key="S")


async def no_backup():
    return None


async def no_store(*args, **options):
    raise ObjectStoreError("the object store is away")


class OwnPages:
    """Answers a request as the listener does: the gate first, then the handler."""

    def __init__(self, plane, folder, *, metrics_page="token"):
        samples = SampleGateway(plane.store.series, plane.clock)
        training = TrainingGateway(plane.hub, plane.store.training, plane.store, plane.clock)
        shelf = RehearsalShelf(folder / "rehearsals")
        desk = RehearsalDesk(shelf, plane.hub, plane.clock, home=folder, grace_s=1.0)
        faults = SimpleNamespace(refusals=dict, largest_disk_bytes=lambda: 0)
        client = SimpleNamespace(request=no_store)
        guesses = GuessLimiter(plane.clock)
        rehearsals = RehearsalActions(faults, admin_token=OWNER)
        self.sessions = Sessions(b"key", folder / "revoked", plane.clock)
        backups = SimpleNamespace(failure="", backups=None, make=no_backup)
        self.handler = ClaryHandler(
            AgentRoutes(plane.gateway, samples, training),
            PoolRoutes(plane.pool_gateway),
            PeopleRoutes(
                plane.services,
                admin_token=OWNER,
                checkpoints=CheckpointRoutes(client),
                rehearsals=rehearsals,
                rehearsal_pages=RehearsalPages(plane.services, desk, faults),
                downloads=DownloadsPage(client, credentials=KEY, region="r", clock=plane.clock),
            ),
            SpotRoutes(plane.market, admin_token=OWNER),
            rehearsals,
            access=Access(self.sessions, admin_token=OWNER),
            status=StatusRoutes(training),
            state=StateRoutes(plane.services, backups, admin_token=OWNER),
            sign_in=SignIn(self.sessions, admin_token=OWNER, guesses=guesses),
            guesses=guesses,
            console=ConsoleRoutes(plane.services, samples, admin_token=OWNER),
        )
        self.metrics = MetricsPage(plane.hub, samples, plane.clock, token=SCRAPER, access=metrics_page, guesses=guesses)

    async def answer(self, request):
        """Return the answer to one request, and how long it is held back."""
        if request.raw_path == "/metrics":
            return await self.metrics.handle(request), 0.0
        verdict = self.handler.admit(request)
        if hasattr(verdict, "answer"):
            return verdict.answer, verdict.delay_s
        return await self.handler.handle(request), 0.0
