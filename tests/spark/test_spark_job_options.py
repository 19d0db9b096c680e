"""`--option` and `--options-file` of the jobs: passed to reading and writing, refused with a sentence."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from jobs import archive
from pyspark_ottla.given import OptionProblem
from pyspark_ottla.job_options import JobOptions, add_arguments, parsed, take
from pyspark_ottla.options import write_options


def test_an_option_goes_where_it_applies_and_overrides_the_jobs_own() -> None:
    options = parsed(
        [
            "failOnDataLoss=false",
            "kafka.batch.size=5",
            "STARTINGOFFSETS=latest",
            "kafka.security.protocol=SSL",
        ],
        [],
        reads=True,
        writes=True,
    )
    assert options.reading({"subscribe": "t", "startingOffsets": "earliest"}) == {
        "subscribe": "t",
        "failOnDataLoss": "false",
        "STARTINGOFFSETS": "latest",
        "kafka.security.protocol": "SSL",
    }
    assert options.writing({"topic": "t"}) == {
        "topic": "t",
        "kafka.batch.size": "5",
        "kafka.security.protocol": "SSL",
    }
    assert options.reading_results("h:1", "t") == {
        "bootstrap.servers": "h:1",
        "subscribe": "t",
        "kafka.isolation.level": "read_committed",
        "kafka.security.protocol": "SSL",
    }
    assert options.security().has_tls


def test_a_batch_is_named_only_where_it_is_written_exactly_once() -> None:
    own = {"bootstrap.servers": "h:1", "topic": "t"}
    place = {"sinkId": "s-1", "batchId": "4"}
    assert JobOptions().writing_batch(own, "s-1", 4) == own | place
    for name, value in (("deliveryGuarantee", "exactly-once"), ("DELIVERYGUARANTEE", "at-least-once")):
        given = {name: value}
        made = parsed([f"{name}={value}"], [], reads=True, writes=True).writing_batch(own, "s-1", 4)
        assert made == own | given | (place if value == "exactly-once" else {})
        write_options(made)


def test_an_argument_overrides_a_file_and_a_password_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "brokers.properties"
    file.write_text(
        "# brokers\n\nkafka.security.protocol = SASL_PLAINTEXT\nkafka.sasl.username=a\nkafka.sasl.password=x=y\n"
    )
    options = parsed(["kafka.sasl.username=b"], [str(file)], reads=True, writes=False)
    assert options.security().sasl_username == "b"
    assert options.security().sasl_password == "x=y"
    assert "x=y" not in repr(archive.Job("", "", "", "", options=options))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("failOnDataLoss", "--option takes NAME=VALUE; got 'failOnDataLoss'"),
        ("subscribe=t", "cannot set subscribe: the job's other arguments do"),
        ("failOnDatLoss=false", "did you mean failOnDataLoss?"),
        ("kafka.batch.size=5", "no option kafka.batch.size for reading"),
        ("kafka.sasl.username=a", "sasl.* options need a login"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(OptionProblem) as refused:
        parsed([text], [], reads=True, writes=False)
    assert sentence in str(refused.value)


def test_a_line_of_a_file_that_is_wrong_is_named_but_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "o"
    file.write_text("\nsecret\n")
    with pytest.raises(OptionProblem, match=r"o, line 2, is not NAME=VALUE\.$"):
        parsed([], [str(file)], reads=True, writes=False)


def test_the_program_ends_with_the_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = vars(parser.parse_args(["--options-file", "/nowhere"]))
    with pytest.raises(SystemExit):
        take(parser, given, reads=True, writes=True)
    assert "No such file or directory: '/nowhere'" in capsys.readouterr().err


def test_either_name_of_the_isolation_level_overrides_the_archives_own() -> None:
    job = archive.Job("h:1", "t", "", "")
    assert archive.options_of(job)["kafka.isolation.level"] == "read_committed"
    changed = archive.Job("h:1", "t", "", "", options=JobOptions({"isolationLevel": "read_uncommitted"}))
    assert "kafka.isolation.level" not in archive.options_of(changed)
