"""Inserts, updates and reads of many job rows, at a third of what the ORM costs a row."""

from __future__ import annotations

import datetime
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import orjson
from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections, models, transaction
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from inference.fields.ids import make_row_id
from inference.fields.json_field import JSONField
from inference.models import TERMINAL, Bulk, Job, Status
from inference.telemetry import tracing
from inference.values.uuid_parsing import make_uuid_from_hex

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.expressions import Col

MOST = 500  # rows of one statement: SQLite takes 32,766 values
SHAPES = 128  # SQL texts that are cached: making one takes as long as running it
MOST_BYTES = 8 * 1024 * 1024  # of JSON documents in one statement; the database holds a statement several times

T = TypeVar("T")
Changes = dict[str, Any]  # what has changed of a job since it was inserted, by attribute

_FIELDS: Sequence[Any] = Job._meta.concrete_fields
# Columns that stay null in a new job.
_UNUSED = ("prompt_length", "error_raised", "error_trace", "reader", *(() if tracing.on else ("traceparent",)))
ERROR = ("error_code", "error_detail", "error_raised", "error_trace")
_OUTCOME_COLUMNS = (  # columns that a request which waits for a job receives
    "id", "status", "output", "error_code", "error_detail", "error_raised", "batch_size", "attempts", "started_at",
    "finished_at", "prompt_length",
    "recoveries",  # the thread that sends the job's message may still read it
)  # fmt: skip
# Columns that change as well.
_DEFERRED_COLUMNS = {"batch", "worker", "device", "published_at", "lease_until", "error_trace", "reader"}


def _is_stored_as_it_is(field: models.Field[Any, Any]) -> bool:
    return isinstance(field, models.CharField | models.TextField | models.IntegerField) and not field.choices


PREPARED: dict[str, Any] = {  # by column: the field that converts its values; None where they are stored unchanged
    field.attname: None if _is_stored_as_it_is(field) else field for field in _FIELDS if field.attname not in _UNUSED
}
_OWN = ("id", "created_at", "parameters")  # columns without a default that all jobs share
_DEFAULTS = {field.attname: field.get_default() for field in _FIELDS if field.attname not in _OWN}
_in_order = operator.itemgetter(*[field.attname for field in _FIELDS])  # as `Job(...)` takes values without names
_DOCUMENTS = [field.attname for field in _FIELDS if isinstance(field, models.JSONField)]


def get_run_alone_threshold() -> int:
    """Return the number of losses after which a job runs alone in its worker, as its next loss is its last.

    A job that an operator has run alone has so many from the start.
    """
    return settings.MAX_RECOVERIES - 1


class JobRow(NamedTuple):
    """A new job, or the outcome of one, with values converted for the database."""

    values: Mapping[str, Any]  # by column, in the order of the table
    size: int  # bytes of its JSON documents


def make_unsaved_job(*, owner: Any, bulk: Bulk | None = None, **values: Any) -> Job:
    """Make an unsaved job as `Job(...)` does, with defaults that were looked up once.

    `Job(...)` looks up those of values that it is not given, which takes as long as all else that is done for a job.
    """
    given = {**_DEFAULTS, "id": make_row_id(), "parameters": {}, **values}
    job = Job(*_in_order(given))
    if owner is not None:
        job.owner = owner
    if bulk is not None:
        job.bulk = bulk
    return job


def convert_job_to_row(job: Job) -> JobRow:
    database: Any = connections[DEFAULT_DB_ALIAS]
    values = vars(job)
    return make_job_row(
        {
            name: stored if values[name] is default else convert_to_db(name, values[name], database)
            for name, default, stored in _list_defaults(database.alias)
        }
    )


@functools.cache
def _list_defaults(alias: str) -> list[tuple[str, Any, Any]]:
    """Return each column's name, its default in Python, and its default as stored.

    Most columns of a new job have their defaults, which are thus converted once. A column without a default has an
    object in place of it that is the value of no job.
    """
    database: Any = connections[alias]
    stored = {name: convert_to_db(name, value, database) for name, value in _DEFAULTS.items() if name in PREPARED}
    return [(name, _DEFAULTS.get(name, stored), stored.get(name)) for name in PREPARED]


def make_row_template(other: JobRow) -> Callable[..., JobRow]:
    """Return a function that makes rows equal to `other` except in the columns that it is given.

    This takes a tenth of what a `Job` and its row cost.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]

    def make_equal_row(**own: Any) -> JobRow:
        return make_job_row(
            {**other.values, **{name: convert_to_db(name, value, database) for name, value in own.items()}}
        )

    return make_equal_row


def make_job_row(values: Mapping[str, Any]) -> JobRow:
    size = 0
    for name in _DOCUMENTS:
        if (document := values.get(name)) is not None:
            size += _count_bytes(document)
    return JobRow(values, size)


def _count_bytes(value: object) -> int:
    text = getattr(value, "obj", value)  # a document for PostgreSQL is a `Jsonb`, with its text in `obj`
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def split_into_chunks(items: Iterable[T], most: int = MOST) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, most)):
        yield chunk


class SizedItem(Protocol):
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=SizedItem)


def split_by_size(items: Iterable[S], most: int = MOST) -> Iterator[list[S]]:
    """Split items into groups for one statement each: at most `most` rows and `MOST_BYTES`.

    A row that alone has more bytes is a group by itself.
    """
    group: list[S] = []
    size = 0
    for item in items:
        if group and (len(group) == most or size + item.size > MOST_BYTES):
            yield group
            group, size = [], 0
        group.append(item)
        size += item.size
    if group:
        yield group


def insert_jobs(rows: Sequence[JobRow]) -> None:
    """Insert the rows, at most `MOST` of them, in one statement.

    Raises `IntegrityError` if an idempotency key is taken; then none of the rows is inserted.

    The statement is a transaction by itself. Each step of a statement releases the interpreter lock, and while other
    threads are busy the writer's thread waits for it each time. Most columns have one value in all rows, which is given
    once. Rows are inserted in the order of their idempotency keys, so that two transactions which insert the same keys
    never wait for each other.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]
    own, common = _split_columns(sorted(rows, key=lambda row: row.values["idempotency_key"] or ""))
    query = _make_insert_sql(tuple(own), tuple(common), len(rows))
    with transaction.atomic() if database.in_atomic_block else nullcontext(), database.cursor() as cursor:
        cursor.execute(query, [*common.values(), *itertools.chain.from_iterable(zip(*own.values(), strict=True))])


@functools.lru_cache(maxsize=SHAPES)
def _make_insert_sql(own: Sequence[str], common: Sequence[str], count: int) -> str:
    names = ", ".join(map(connections[DEFAULT_DB_ALIAS].ops.quote_name, (*own, *common)))
    selected = ", ".join(["own.*", *["%s"] * len(common)])
    values = ", ".join([f"({make_placeholders(len(own))})"] * count)
    return f"INSERT INTO {Job._meta.db_table} ({names}) SELECT {selected} FROM (VALUES {values}) AS own"  # noqa: S608 - own names


def end_claimed_jobs(rows: Sequence[JobRow], batch: UUID) -> int:
    """Write what ends running jobs of `batch` in one statement, as `insert_jobs` does.

    The columns of each row are its id and what is written beside the time. Jobs that are not the batch's any more are
    left as they are. Returns how many jobs were changed.

    Rows are locked in the order of their ids, as everywhere: else two transactions that change the same rows could wait
    for each other.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]
    own, common = _split_columns(rows)
    query = _make_update_sql(tuple(own), tuple(common), len(rows))
    given = itertools.chain.from_iterable(zip(*own.values(), strict=True))
    owner = convert_ids_to_db([batch], database) * (2 if database.features.has_select_for_update else 1)
    with database.cursor() as cursor:
        cursor.execute(query, [*common.values(), *given, *owner])
        return int(cursor.rowcount)


@functools.lru_cache(maxsize=SHAPES)
def _make_update_sql(own: Sequence[str], common: Sequence[str], count: int) -> str:
    assigned = [f"{name} = %s" for name in common]
    assigned += [f"{name} = own.column{number}" for number, name in enumerate(own, 1) if name != "id"]
    assigned += [f"finished_at = {make_now_sql()}"]
    is_held = "job.batch = %s AND job.status = 'running'"
    of_own = f"(VALUES {', '.join([f'({make_placeholders(len(own))})'] * count)}) AS own"
    table, is_own = Job._meta.db_table, f"job.id = own.column{1 + own.index('id')} AND {is_held}"
    if connections[DEFAULT_DB_ALIAS].features.has_select_for_update:
        in_order = f"JOIN {table} AS job ON {is_own} ORDER BY job.id FOR UPDATE OF job"
        of_own = f"(SELECT own.* FROM {of_own} {in_order}) AS own"  # noqa: S608 - own names
    return f"UPDATE {table} AS job SET {', '.join(assigned)} FROM {of_own} WHERE {is_own}"  # noqa: S608 - own names


def _split_columns(rows: Sequence[JobRow]) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """Return the columns in which rows differ, and the common value of each other column.

    The id counts as a column that differs, also in a single row.
    """
    columns = dict(zip(rows[0].values, zip(*(row.values.values() for row in rows), strict=True), strict=True))
    own = {name: column for name, column in columns.items() if name == "id" or column.count(column[0]) < len(rows)}
    return own, {name: column[0] for name, column in columns.items() if name not in own}


def convert_to_db(name: str, value: object, database: BaseDatabaseWrapper) -> Any:
    """Convert a value of the column `name` for the database."""
    field = PREPARED[name]
    if field is None or value is None:
        return value
    return convert_ids_to_db([value], database)[0] if type(value) is UUID else field.get_db_prep_value(value, database)


def convert_ids_to_db(ids: Iterable[UUID], database: BaseDatabaseWrapper) -> list[Any]:
    """Convert ids as `convert_to_db` does, at a tenth of its cost."""
    return list(ids) if database.features.has_native_uuid_field else [f"{each.int:032x}" for each in ids]


def read_outcomes(ids: Collection[UUID]) -> dict[UUID, Changes]:
    """Return the changes of those of these jobs that are finished, by id."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    with database.cursor() as cursor:
        cursor.execute(_make_finished_sql(len(ids)), [*convert_ids_to_db(ids, database), *TERMINAL])
        rows = cursor.fetchall()
    return {
        row[0]: dict(zip(_OUTCOME_COLUMNS, row, strict=True))
        for row in convert_from_db(rows, _OUTCOME_COLUMNS, database)
    }


def find_finished(ids: Iterable[UUID]) -> set[UUID]:
    """Return the ids of those of these jobs that are finished."""
    found = (Job.objects.filter(pk__in=chunk, status__in=TERMINAL).order_by() for chunk in split_into_chunks(ids))
    return {job_id for jobs in found for job_id in jobs.values_list("pk", flat=True)}


@functools.lru_cache(maxsize=SHAPES)
def _make_finished_sql(count: int) -> str:
    where = f"id IN ({make_placeholders(count)}) AND status IN ({make_placeholders(len(TERMINAL))})"
    return f"SELECT {', '.join(_OUTCOME_COLUMNS)} FROM {Job._meta.db_table} WHERE {where}"  # noqa: S608 - own names


def set_job_attributes(job: Job, changes: Changes) -> None:
    """Set the attributes of a job that is finished.

    Attributes that changed as well and are not among `changes` are deferred: Django reads them on their first use.
    """
    for name, value in changes.items():
        setattr(job, name, value)
    for name in _DEFERRED_COLUMNS - job.get_deferred_fields():
        delattr(job, name)


def find_running_ids(batch: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Return those of `ids` that `batch` still runs."""
    running = Job.objects.filter(pk__in=ids, batch=batch, status=Status.RUNNING)
    return set(running.order_by().values_list("pk", flat=True))


def read_inputs_of_whole(whole: UUID) -> list[Any]:
    """Return the inputs of a whole's parts, in the order of the list."""
    parts = Job.objects.filter(whole=whole).order_by("place").values_list("inputs", flat=True)
    return [item for part in parts for item in part]


def make_parts_output_expression(whole: UUID) -> RawSQL:
    """Return an expression by which the database joins the outputs of a whole's parts in order."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    sql = _OUTPUTS[database.vendor].format(table=Job._meta.db_table)
    return RawSQL(sql, [convert_to_db("whole", whole, database)], output_field=models.TextField())  # noqa: S611 - our own


_OUTPUTS = {
    "postgresql": """SELECT jsonb_agg(item.value ORDER BY part.place, item.number) FROM {table} AS part,
        LATERAL jsonb_array_elements(part.output) WITH ORDINALITY AS item(value, number) WHERE part.whole = %s""",
    "sqlite": """SELECT '[' || group_concat(substr(output, 2, length(output) - 2), ',') || ']'
        FROM (SELECT output FROM {table} WHERE whole = %s ORDER BY place)""",
}


def convert_from_db(
    rows: Sequence[Sequence[Any]], names: tuple[str, ...], database: BaseDatabaseWrapper
) -> Iterator[Sequence[Any]]:
    """Convert the values of rows as the ORM would, and return an iterator over the rows.

    `names` are the columns of a row. One column is converted after the other, which costs half of what it does row by
    row.
    """
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for place, convert in _list_converters(database.alias, names) if columns else ():
        columns[place] = convert(columns[place], database)
    return zip(*columns, strict=True)


Convert = Callable[[Sequence[Any], Any], Sequence[Any]]  # takes the values of a column, and the database connection


@functools.cache
def _list_converters(alias: str, names: tuple[str, ...]) -> list[tuple[int, Convert]]:
    """Return the converters of the columns whose stored values differ from those read, with each column's place.

    NULL is read as None.
    """
    database = connections[alias]
    fields: Sequence[Any] = [Job._meta.get_field(name) for name in names]
    columns = [field.get_col(Job._meta.db_table) for field in fields]
    return [(place, convert) for place, column in enumerate(columns) for convert in _find_converters(column, database)]


def _find_converters(column: Col, database: BaseDatabaseWrapper) -> list[Convert]:
    if isinstance(column.target, models.UUIDField) and not database.features.has_native_uuid_field:
        return [lambda values, _: [None if value is None else make_uuid_from_hex(value) for value in values]]
    if isinstance(column.target, JSONField):
        return [lambda values, _: [None if value is None else orjson.loads(value) for value in values]]
    converters = [*database.ops.get_db_converters(column), *column.get_db_converters(database)]
    return [functools.partial(_convert_distinct, column, converter) for converter in converters]


def _convert_distinct(
    column: Col, convert: Callable[..., Any], values: Sequence[Any], database: BaseDatabaseWrapper
) -> Sequence[Any]:
    """Convert each distinct value of a column once.

    The conversion of moments takes as long as all else, and many rows share a moment.
    """
    known = {value: None if value is None else convert(value, column, database) for value in set(values)}
    return [known[value] for value in values]


def make_placeholders(count: int) -> str:
    """Return `count` placeholders of a statement."""
    return ", ".join(["%s"] * count)


def make_now_sql() -> str:
    """Return SQL for the current time of the database, so that no two hosts' clocks are ever compared.

    Its percent signs are doubled, for a statement that is executed with values.
    """
    return make_moment_sql(0.0, connections[DEFAULT_DB_ALIAS].vendor)[0]


@functools.cache
def make_moment_sql(seconds: float, vendor: str) -> tuple[str, Sequence[Any]]:
    """Return the moment `seconds` from now, as SQL and its values.

    The result is cached, since compiling it takes a millisecond.
    """
    moment: Any = Now() + datetime.timedelta(seconds=seconds) if seconds else Now()
    query = Job.objects.all().query
    sql, values = query.get_compiler(connection=connections[DEFAULT_DB_ALIAS]).compile(moment.resolve_expression(query))
    return str(sql), values
