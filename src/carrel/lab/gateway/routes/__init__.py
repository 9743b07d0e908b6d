"""The endpoints of ``/api/v1``. Thin: they read the request, ask the lab, and show the answer."""
