"""pytest plugin for slow tools: of every test that runs on the device, its first case. `-p short_selection`."""

from __future__ import annotations


def pytest_collection_modifyitems(config, items):
    """Deselects tests without the fixture `device`, and all cases of a test but the first."""
    first: dict[tuple, object] = {}
    for item in items:
        if "device" in item.fixturenames:
            first.setdefault((item.path, item.originalname), item)
    kept = set(map(id, first.values()))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in kept])
    items[:] = [item for item in items if id(item) in kept]
