"""Goal: every error code of Kafka has one exception, which says what it is and how to react.

Method: walk the enumeration and the classes; names and retriability are compared with the tables of
two independent libraries (kio's enumeration, kafka-python's classes).
"""

from __future__ import annotations

import pickle

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from onceflow.sdk import errors
from onceflow.sdk.protocol.error_codes import ErrorCode, error_for, is_retriable

WORTH_ANOTHER_CALL = {ErrorCode.REBALANCE_IN_PROGRESS}
"""Kafka's own client calls this one final, although the same commit succeeds after a poll."""

CODES = [code for code in ErrorCode if code != ErrorCode.NONE]


def test_the_enumeration_has_no_holes() -> None:
    assert [int(code) for code in ErrorCode] == list(range(-1, 137))


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_an_exception_of_its_name(code: ErrorCode) -> None:
    error = error_for(code, "detail")
    assert type(error) is errors.BrokerError.by_code[code]
    assert (error.code, error.name, error.message) == (int(code), code.name, "detail")
    assert str(error) == f"{code.name} ({int(code)}): {error.sentence()} [detail]"
    assert error.sentence().endswith(".")
    assert getattr(errors, type(error).__name__) is type(error)


@pytest.mark.parametrize("foreign", list(KioErrorCode), ids=lambda code: code.name)
def test_names_and_retriability_agree_with_kio(foreign: KioErrorCode) -> None:
    code = ErrorCode(int(foreign))
    assert code.name == foreign.name.upper()
    assert is_retriable(code) == (foreign.retriable or code in WORTH_ANOTHER_CALL)


@pytest.mark.parametrize("code", CODES)
def test_retriable_is_told_by_class_and_by_attribute(code: ErrorCode) -> None:
    error = error_for(code)
    assert error.retriable == isinstance(error, errors.RetriableError) == is_retriable(code)


@pytest.mark.parametrize("code", CODES)
def test_an_error_has_at_most_one_reaction(code: ErrorCode) -> None:
    kinds = (
        errors.RetriableError,
        errors.AbortableError,
        errors.FatalError,
        errors.RecordError,
    )
    assert sum(isinstance(error_for(code), kind) for kind in kinds) <= 1


def test_an_unlisted_code_is_told_with_its_number() -> None:
    error = error_for(999, "new")
    assert isinstance(error, errors.BrokerError)
    assert (error.code, error.name, error.retriable) == (999, "CODE_999", False)
    assert not is_retriable(999)


@pytest.mark.parametrize(
    "error",
    [
        *(error_for(code, "detail") for code in CODES),
        error_for(999, "new"),
        errors.ConfigError("linger_ms", -1, "use 0 or more"),
        errors.DeliveryTimeoutError("text"),
        errors.CommitOutcomeUnknownError(),
    ],
    ids=repr,
)
def test_errors_pickle(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))


def test_a_refused_value_that_cannot_go_to_another_process_goes_as_its_text() -> None:
    error = errors.ConfigError("partitioner", lambda: None, "give a name")
    error.add_note("noted")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.__notes__) == (str(error), ["noted"])
    assert repr(again.value) == repr(error.value)


def test_an_error_without_text_says_what_to_do_next() -> None:
    assert "committed or aborted, never half" in str(errors.CommitOutcomeUnknownError())
    assert str(errors.ConfigError("acks", 7, "use 0, 1 or all")) == "acks=7: use 0, 1 or all"


def test_reactions_that_transactions_rely_on() -> None:
    assert issubclass(errors.ProducerFencedError, errors.FatalError)
    assert issubclass(errors.InvalidProducerEpochError, errors.AbortableError)
    assert issubclass(errors.TransactionAbortableError, errors.AbortableError)
    assert issubclass(errors.ConcurrentTransactionsError, errors.RetriableError)
    assert issubclass(errors.MessageTooLargeError, errors.RecordError)
    assert issubclass(errors.ConfigError, ValueError)
