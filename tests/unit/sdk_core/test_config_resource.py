"""Goal: a resource of no known type is told with what to write.

Method: the check alone; no broker is needed for it.
"""

from __future__ import annotations

from typing import cast

import pytest

from onceflow.sdk.core.admin.arguments import resource
from onceflow.sdk.errors import ConfigError
from onceflow.sdk.model.admin import ConfigResource, ResourceType


def test_a_type_given_as_text_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"ConfigResource\.type='broker'.*ResourceType\.BROKER"):
        resource("resources", ConfigResource(cast("ResourceType", "broker"), ""))
    assert resource("resources", "t") == ConfigResource(ResourceType.TOPIC, "t")
