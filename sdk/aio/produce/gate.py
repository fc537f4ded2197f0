"""Whether a producer accepts records, and why not: it is closed, not started or broken, or the
application has not seen the failure of a record.

The accumulator calls the gate only while it is closed, so that a record costs no call. The
transaction manager decides what counts as broken, the sender which batches failed.
"""

from __future__ import annotations

from onceflow.sdk.aio.forks import forked_error
from onceflow.sdk.core.produce.accumulator import Accumulator, D
from onceflow.sdk.core.produce.sender import Sender
from onceflow.sdk.core.produce.transaction_manager import TransactionManager, TransactionState
from onceflow.sdk.errors import ClientClosedError, IllegalStateError, KafkaError


class Gate:
    """The reasons to refuse records; callable from any thread.

    Attributes:
        is_started: Whether the producer runs.
        is_closing: Whether it was closed.
        is_foreign: Whether this process is a fork of the one that started it.
    """

    def __init__(
        self, accumulator: Accumulator[D], sender: Sender, transactions: TransactionManager
    ) -> None:
        self.is_started = False
        self.is_closing = False
        self.is_foreign = False
        self._close_gate = accumulator.close_gate
        self._open_gate = accumulator.open_gate
        self._sender = sender
        self._transactions = transactions
        accumulator.refusal = self.refusal
        accumulator.close_gate()

    def refusal(self) -> KafkaError | None:
        """Return why nothing may be appended now; the accumulator's lock is held."""
        if self.is_closing:
            return closed_error()
        if self.is_foreign:
            return forked_error("producer")
        if not self.is_started:
            return IllegalStateError("this producer is not started; await start() first")
        manager = self._transactions
        if manager.is_broken:
            return manager.error
        if manager.is_transactional:
            try:
                manager.require(TransactionState.IN_TRANSACTION, what="send()")
            except KafkaError as error:
                return error
        failure = self.take_failure()
        self.update()
        return failure

    def update(self) -> None:
        """Close the accumulator's gate if there is a reason, and open it otherwise."""
        manager = self._transactions
        good = self.is_started and not (self.is_closing or self.is_foreign)
        good = good and not self._sender.failures
        if manager.is_transactional:
            good = good and manager.state is TransactionState.IN_TRANSACTION
        else:
            good = good and manager.state is not TransactionState.FATAL_ERROR
        if good:
            self._open_gate()
        else:
            self._close_gate()

    def take_failure(self) -> KafkaError | None:
        """Return the first unseen failure, once; a note counts the others."""
        failures, self._sender.failures = self._sender.failures, []
        unseen = [batch for batch in failures if batch.unseen_failures]
        if not unseen:
            return None
        error = unseen[0].error
        assert error is not None
        count = sum(batch.unseen_failures for batch in unseen)
        note = f"{count} records failed whose delivery was not looked at; this is the first cause"
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
        return error

    def raise_failure(self) -> None:
        """Raise the error that the application has not seen yet.

        Raises:
            KafkaError: The error that broke the transaction, or the first unseen failure.
        """
        error = self._transactions.error if self._transactions.is_broken else None
        if error is None:
            error = self.take_failure()
            self.update()
        if error is not None:
            raise error.with_traceback(None)


def closed_error() -> KafkaError:
    """Return the error of a closed producer."""
    return ClientClosedError("this producer is closed; make a new one")
