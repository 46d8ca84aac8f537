"""Settings that version 0.1.0 did not have leave its files and ids as they were."""

from __future__ import annotations

import pytest

from fedmosaic_cli.data.data_settings import NOT_IN_FIRST_VERSION, DataSettings


@pytest.mark.parametrize("name", NOT_IN_FIRST_VERSION)
def test_new_settings_are_in_config_files_and_run_ids_only_if_used(name):
    plain, changed = DataSettings(), DataSettings(**{name: 7})
    assert name not in plain.to_config()
    assert name not in repr(plain)
    assert changed.to_config()[name] == 7
    assert f"{name}=7" in repr(changed)
    assert plain.to_config().keys() | set(NOT_IN_FIRST_VERSION) == DataSettings.model_fields.keys()
