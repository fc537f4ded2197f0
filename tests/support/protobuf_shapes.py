"""Protobuf messages for tests, made from descriptors, so that no compiler is needed.

``Order`` lies in ``shop/order.proto``, which imports ``shop/money.proto`` and a built-in type;
``Line`` is nested in ``Order``; ``Refund`` is the file's second message. ``Label`` is nested in
``Parcel`` of ``shop/parcel.proto``, behind the entry of a map.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

STRING = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
INT64 = descriptor_pb2.FieldDescriptorProto.TYPE_INT64
MESSAGE = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE


def _field(message: Any, name: str, number: int, kind: int, type_name: str = "") -> None:
    entry = message.field.add(name=name, number=number, type=kind)
    entry.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    if type_name:
        entry.type_name = type_name


def _pool() -> Any:
    pool = descriptor_pool.DescriptorPool()
    built_in = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(built_in)
    money = descriptor_pb2.FileDescriptorProto(
        name="shop/money.proto", package="shop", syntax="proto3"
    )
    amount = money.message_type.add(name="Money")
    _field(amount, "cents", 1, INT64)
    pool.Add(money)
    order = descriptor_pb2.FileDescriptorProto(
        name="shop/order.proto",
        package="shop",
        syntax="proto3",
        dependency=["shop/money.proto", "google/protobuf/timestamp.proto"],
    )
    first = order.message_type.add(name="Order")
    _field(first, "id", 1, INT64)
    _field(first, "price", 2, MESSAGE, ".shop.Money")
    _field(first, "at", 3, MESSAGE, ".google.protobuf.Timestamp")
    line = first.nested_type.add(name="Line")
    _field(line, "text", 1, STRING)
    second = order.message_type.add(name="Refund")
    _field(second, "reason", 1, STRING)
    pool.Add(order)
    parcel = descriptor_pb2.FileDescriptorProto(
        name="shop/parcel.proto", package="shop", syntax="proto3"
    )
    third = parcel.message_type.add(name="Parcel")
    entry = third.nested_type.add(name="SizesEntry")
    entry.options.map_entry = True
    _field(entry, "key", 1, STRING)
    _field(entry, "value", 2, INT64)
    _field(third, "sizes", 1, MESSAGE, ".shop.Parcel.SizesEntry")
    third.field[0].label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
    label = third.nested_type.add(name="Label")
    _field(label, "text", 1, STRING)
    pool.Add(parcel)
    return pool


_POOL = _pool()


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


Order = _message("shop.Order")
Line = _message("shop.Order.Line")
Refund = _message("shop.Refund")
Money = _message("shop.Money")
Parcel = _message("shop.Parcel")
Label = _message("shop.Parcel.Label")
