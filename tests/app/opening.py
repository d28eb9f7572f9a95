"""Opening a page as a link does, for the tests of many pages."""

from __future__ import annotations

from typing import Any


def open_page(app: Any, name: str, **link: str) -> Any:
    """The app on a page with a link's values, at once as a browser opens it, and not by way of the case study."""
    for key, value in link.items():
        app.query_params[key] = value
    app.switch_page(f"app_pages/{name}.py").run()
    assert not app.exception
    return app
