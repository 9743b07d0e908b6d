"""The routes of nouns, and what the API's document says of them. A new noun is a line here, and one in `actions`."""

from __future__ import annotations

from carrel.core.domain.nouns import ANNOUNCEMENTS, BLOCKS, COMPOSITIONS, RESERVATIONS, SECRETS
from carrel.lab.gateway.nouns import noun_routes

ROUTES = [
    *noun_routes(
        ANNOUNCEMENTS,
        "lab",
        list=("What all users are told now", "Administrators also see what they will be told later."),
        get=("One announcement", "404 for one that is over."),
        add=("Tell all users something (administrators)", "Plain text of at most 500 characters. Without `begin` it begins now."),
        delete=("Tell users something no longer (administrators)", "Pages show it until they are loaded again."),
    ),
    *noun_routes(
        BLOCKS,
        "machines",
        list=("Blocks of the fabric", "Where each is, whether it is well, and which composition has it."),
    ),
    *noun_routes(
        COMPOSITIONS,
        "machines",
        list=(
            "Machines from parts",
            "One's own, and everybody's for operators: those that are there, that wait, and that are over.",
        ),
        get=("One machine from parts", "With what is left to do, why it waits, and until when."),
        add=(
            "Make a machine from parts",
            "It waits until its blocks are free. With `preview` nothing is kept: the answer says what would be taken, and when.",
        ),
        delete=("Give the blocks of a machine back", "What runs on it goes on until it ends; nothing new starts there."),
    ),
    *noun_routes(
        RESERVATIONS,
        "lab",
        list=("Reservations of nodes, in force and to come", "Everybody may know when which nodes are not theirs, and what for."),
        put=(
            "Keep nodes for some people, or for nobody (operators)",
            "Jobs that run there go on; others do not start when their walltime would reach into it.",
        ),
        delete=("Release reserved nodes (operators)", "Jobs that waited for it are placed at once."),
    ),
    *noun_routes(
        SECRETS,
        "secrets",
        list=("Names of one's own secrets", "Without their values, which nobody is shown again."),
        delete=("Forget a secret of one's own", "Jobs that wait and name it will fail when they start, and say why."),
    ),
]
