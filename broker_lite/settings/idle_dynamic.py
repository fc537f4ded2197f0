"""Settings that Apache Kafka lets change at run time and that have no effect on this broker.

Tools set them: those that move partitions, tune threads and the log cleaner, or manage clusters by
a file. They are checked as in Kafka, stored and shown, and nothing else uses them. Before their
first change they are not shown.
"""

from __future__ import annotations

import sys

from onceflow.sdk.settings.declare import INT64_MAX, Kind, Setting

_NO_REPLICATION = "Accepted for compatibility; one node replicates nothing."
_NO_THREADS = "Accepted for compatibility; this broker has no pools of threads."
_OWN_CLEANER = "Accepted for compatibility; this broker's log cleaner has no such bounds."
_NO_LOG_IN = "Accepted for compatibility; this broker logs in to no other one."
_INT_MAX = 2**31 - 1
_DOUBLE_MAX = sys.float_info.max
_BUFFER_BYTES = 128 * 1024 * 1024


def _integer(name: str, default: int, text: str, least: int, most: int = _INT_MAX) -> Setting:
    return Setting(Kind.INT, default, text, least, most, name=name)


def _long(name: str, default: int, text: str) -> Setting:
    return Setting(Kind.LONG, default, text, 0, INT64_MAX, name=name)


def _fraction(name: str, default: float, text: str, least: float, most: float) -> Setting:
    return Setting(Kind.DOUBLE, default, text, least, most, name=name)


IDLE_DYNAMIC_SETTINGS = {
    setting.name: setting
    for setting in (
        _long("leader.replication.throttled.rate", INT64_MAX, _NO_REPLICATION),
        _long("follower.replication.throttled.rate", INT64_MAX, _NO_REPLICATION),
        _long("replica.alter.log.dirs.io.max.bytes.per.second", INT64_MAX, _NO_REPLICATION),
        _integer("num.replica.fetchers", 1, _NO_REPLICATION, 1),
        Setting(Kind.BOOLEAN, False, _NO_REPLICATION, name="unclean.leader.election.enable"),
        _integer("background.threads", 10, _NO_THREADS, 1),
        _integer("num.io.threads", 8, _NO_THREADS, 1),
        _integer("num.network.threads", 3, _NO_THREADS, 1),
        _integer("num.recovery.threads.per.data.dir", 2, _NO_THREADS, 1),
        _integer("log.cleaner.threads", 1, _NO_THREADS, 0),
        _long("log.cleaner.dedupe.buffer.size", _BUFFER_BYTES, _OWN_CLEANER),
        _integer("log.cleaner.io.buffer.size", 524_288, _OWN_CLEANER, 0),
        _fraction("log.cleaner.io.buffer.load.factor", 0.9, _OWN_CLEANER, 0, _DOUBLE_MAX),
        _fraction("log.cleaner.io.max.bytes.per.second", _DOUBLE_MAX, _OWN_CLEANER, 0, _DOUBLE_MAX),
        Setting(Kind.STRING, "/usr/bin/kinit", _NO_LOG_IN, name="sasl.kerberos.kinit.cmd"),
        _long("sasl.kerberos.min.time.before.relogin", 60_000, _NO_LOG_IN),
        _fraction("sasl.kerberos.ticket.renew.window.factor", 0.8, _NO_LOG_IN, 0, 1),
        _fraction("sasl.kerberos.ticket.renew.jitter", 0.05, _NO_LOG_IN, 0, 1),
        _integer("sasl.login.refresh.buffer.seconds", 300, _NO_LOG_IN, 0, 3_600),
        _integer("sasl.login.refresh.min.period.seconds", 60, _NO_LOG_IN, 0, 900),
        _fraction("sasl.login.refresh.window.factor", 0.8, _NO_LOG_IN, 0.5, 1),
        _fraction("sasl.login.refresh.window.jitter", 0.05, _NO_LOG_IN, 0, 0.25),
    )
}
"""By their names in Kafka."""
