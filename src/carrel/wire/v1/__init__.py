"""Models of ``/api/v1``. Times are ISO 8601 in UTC, sizes are bytes, durations are seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carrel.core.lazy_imports import lazy_imports

if TYPE_CHECKING:
    from carrel.core.domain.call import WorkerPool
    from carrel.core.domain.cells import CellPage
    from carrel.core.domain.challenge import (
        Board,
        Challenge,
        ChallengeLines,
        ChallengeView,
        Rescore,
        SubmissionList,
        SubmissionView,
        TeamView,
    )
    from carrel.core.domain.challenge_notice import ChallengeNotice, NoticeList
    from carrel.core.domain.challenge_report import ChallengeReport, Likeness
    from carrel.core.domain.challenge_sample import SampleList
    from carrel.core.domain.nouns import BLOCKS, COMPOSITIONS, DRAINS, POOLS, RESERVATIONS, SECRETS, TOKENS
    from carrel.core.domain.reservation import Reservation
    from carrel.core.domain.retention import Collection, StorageReport
    from carrel.core.domain.secret import Secret
    from carrel.core.domain.token import MadeToken, Token
    from carrel.wire.v1.base import Problem, Request, Response
    from carrel.wire.v1.baselines import (
        BaselineList,
        BaselineRequest,
        BaselineRow,
        BaselineTable,
        BaselineView,
        CalibrationRequest,
        CalibrationView,
        DriftView,
    )
    from carrel.wire.v1.challenges import (
        AnswerRequest,
        ChoiceRequest,
        CodeRequest,
        DryRunView,
        MergeRequest,
        PublishRequest,
        QuotaRequest,
        SampleRequest,
        StarterView,
        TeamRequest,
        TextRequest,
    )
    from carrel.wire.v1.comparison import (
        CandidateView,
        ChangeView,
        ComparedJob,
        ComparedValue,
        ComparisonView,
        DifferenceView,
        ExplainRequest,
        MatrixRequest,
        MatrixRowView,
        MatrixRunView,
        MatrixView,
        MetricsView,
        MetricView,
        NotKnownView,
        ResultDifferenceView,
        ResultsView,
        VariantView,
        VerificationRequest,
        WhyView,
    )
    from carrel.wire.v1.environments import (
        EnvironmentLockText,
        EnvironmentLockView,
        EnvironmentProgress,
        EnvironmentRequest,
        EnvironmentRestoreRequest,
        EnvironmentShareRequest,
        NamedEnvironmentList,
        NamedEnvironmentView,
    )
    from carrel.wire.v1.jobs import (
        AlternativeView,
        ArrayView,
        AttemptView,
        EventPage,
        EventView,
        ExportedAttemptPage,
        GitRequest,
        InputRequest,
        JobDetail,
        JobPage,
        JobView,
        OutputList,
        OutputView,
        PreviewView,
        QueueView,
        ReplayRequest,
        ResourceRequest,
        ResourceView,
        RunView,
        SlurmRequest,
        SnapshotView,
        StepRequest,
        TaskRequest,
        TrackingRequest,
        UsageView,
    )
    from carrel.wire.v1.lab import (
        AccountView,
        DiskView,
        HealthView,
        LabView,
        PartitionView,
        QoSView,
        Reloaded,
        RulesChanged,
        RulesPreview,
        RulesPreviewRequest,
        RulesRequest,
        ShareView,
        SimulatedMeasures,
        SimulatedRow,
        StandingView,
        StartRangesView,
    )
    from carrel.wire.v1.nodes import (
        ClusterNodeView,
        DeviceView,
        HolderView,
        NodeList,
        NodeView,
    )
    from carrel.wire.v1.nouns import Changed, asked_of, change_of, list_of, show, shown_of, value_of
    from carrel.wire.v1.people import (
        Invitation,
        InvitationRequest,
        NewUser,
        RedeemRequest,
        ResetRequest,
        SuspendRequest,
        TokenRequest,
        UserChange,
        UserList,
        UserRequest,
        UserView,
    )
    from carrel.wire.v1.pools import (
        BodyFile,
        CallLog,
        CallNumbers,
        CallPage,
        CallView,
        CancelRequest,
        FetchedRequest,
        Forgotten,
        WorkerPoolRequest,
    )
    from carrel.wire.v1.reports import (
        AuditPage,
        ClassTimesView,
        SessionReportView,
        SessionTimesView,
        StartReportView,
        TimesView,
        UseReportView,
        UseView,
    )
    from carrel.wire.v1.secrets import JobSecrets, SecretChange
    from carrel.wire.v1.sessions import (
        DeviceShareView,
        HostView,
        HubRequest,
        HubView,
        LeaseRequestView,
        LeaseView,
        LendingView,
        LentDevice,
        MoveRateView,
        MoveView,
        NodeLendingView,
        PoolView,
        RoomView,
        SessionLink,
        SessionList,
        SessionRequest,
        SessionView,
        StrangerView,
        StretchView,
        TenantView,
    )
    from carrel.wire.v1.ssh import SshRequest, SshView
    from carrel.wire.v1.storage import CollectRequest, OutputsRemoved
    from carrel.wire.v1.sweeps import (
        ResumeRequest,
        SweepDetail,
        SweepList,
        SweepRequest,
        SweepView,
        TrialReport,
        TrialValue,
        TrialVerdict,
        TrialView,
    )
else:
    __getattr__, __dir__ = lazy_imports(__name__)

API = "/api/v1"
#: Header of every answer under `API` while a disk of the lab's has no room: "low" or "full", a semicolon, a sentence (quoted as
#: in URLs).
STORAGE_HEADER = "X-Carrel-Storage"
