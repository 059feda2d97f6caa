"""The site file: a cluster's own names."""

import pytest
import yaml

from slipway.config.load import ConfigError
from slipway.config.site import EXAMPLE, Site, default_resources, read_site


def test_without_a_file_everything_is_the_clusters_default(tmp_path):
    assert default_resources(read_site(tmp_path / "site.yaml")) == {}


def test_the_example_shows_every_key_with_its_default():
    example = yaml.safe_load(EXAMPLE.read_text())
    assert example == Site.model_validate({}).model_dump()


def test_resources_of_the_rules_come_from_the_file(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text("account: rl\ncpu_partition: short\ngpu_partition: gpu\n")
    assert default_resources(read_site(file)) == {"slurm_account": "rl", "slurm_partition": "short"}


def test_every_fault_is_told_with_file_and_key(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text("acount: rl\ncpus_per_gpu: many\n")
    with pytest.raises(ConfigError) as caught:
        read_site(file)
    said = str(caught.value)
    assert f"{file}: acount = 'rl': unknown key. Did you mean account?" in said
    assert f"{file}: cpus_per_gpu = 'many'" in said


def test_a_key_given_twice_and_a_list_are_refused(tmp_path):
    file = tmp_path / "site.yaml"
    file.write_text("account: a\naccount: b\n")
    with pytest.raises(Exception, match="account"):
        read_site(file)
    file.write_text("- account\n")
    with pytest.raises(Exception, match="expected a mapping with the keys account"):
        read_site(file)
