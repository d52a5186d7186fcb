"""Job rows in bulk, at a third of what the ORM costs a row: new jobs in, outcomes out."""

import datetime
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import UUID

import orjson
from django.db import DEFAULT_DB_ALIAS, connections, models, transaction
from django.db.models.base import ModelState
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from inference.fields.ids import new_job_id
from inference.fields.json_field import JSONField
from inference.fields.uuids import id_of_hex
from inference.models import TERMINAL, Bulk, Job, Status
from inference.telemetry import tracing

MOST = 500  # rows of one statement: SQLite takes 32,766 values
SHAPES = 128  # of statements that are kept: to make one takes as long as to run it
MOST_BYTES = 8 * 1024 * 1024  # of their documents; the database holds a statement several times

T = TypeVar("T")
Changes = dict[str, Any]  # what happened to a job since it was inserted, by attribute

_FIELDS: Sequence[Any] = Job._meta.concrete_fields
_UNUSED = (
    "prompt_length",
    "error_raised",
    "error_trace",
    "reader",
    *(() if tracing.on else ("traceparent",)),
)  # of a new job
ERROR = ("error_code", "error_detail", "error_raised", "error_trace")
_TOLD = (  # to who waits for a job
    "id", "status", "output", "error_code", "error_detail", "error_raised", "batch_size", "attempts", "started_at",
    "finished_at", "prompt_length",
    "recoveries",  # who sends the job may still look at it
)  # fmt: skip
_UNTOLD = ("batch", "worker", "device", "published_at", "lease_until", "error_trace", "reader")  # of what changes too


def _is_stored_as_it_is(field: Any) -> bool:
    return isinstance(field, models.CharField | models.TextField | models.IntegerField) and not field.choices


PREPARED: dict[str, Any] = {  # by column: the field that prepares a value for the database, if it needs to be
    field.attname: None if _is_stored_as_it_is(field) else field for field in _FIELDS if field.attname not in _UNUSED
}
_OWN = ("id", "created_at", "parameters")  # each job has its own
_DEFAULTS = {field.attname: field.get_default() for field in _FIELDS if field.attname not in _OWN}
_DOCUMENTS = [field.attname for field in _FIELDS if isinstance(field, models.JSONField)]


class Row(NamedTuple):
    """A new job, or what becomes of one, as the database takes it."""

    values: Mapping[str, Any]  # by column, in the order of the table
    size: int  # bytes of its documents


def new_job(*, owner: Any, bulk: Bulk | None = None, **values: Any) -> Job:
    """As `Job(...)`, whose defaults are looked up for each anew: that takes as long as all else that is done for it."""
    job = Job.__new__(Job)
    vars(job).update(_DEFAULTS, _state=ModelState(), id=new_job_id(), **{"parameters": {}, **values})
    if owner is not None:
        job.owner = owner
    if bulk is not None:
        job.bulk = bulk
    return job


def prepare(job: Job) -> Row:
    database: Any = connections[DEFAULT_DB_ALIAS]
    values = vars(job)
    return row(
        {
            name: stored if values[name] is default else to_db(name, values[name], database)
            for name, default, stored in _defaults(database.alias)
        }
    )


@functools.cache
def _defaults(alias: str) -> list[tuple[str, Any, Any]]:
    """Of each column, as Python and the database have it: most of a new job's are what they are in every new job."""
    database: Any = connections[alias]
    stored = {name: to_db(name, value, database) for name, value in _DEFAULTS.items() if name in PREPARED}
    return [(name, _DEFAULTS.get(name, stored), stored.get(name)) for name in PREPARED]


def likes(other: Row) -> Callable[..., Row]:
    """Makes rows that differ in the columns that it is given, at a tenth of what a `Job` and its row cost."""
    database: Any = connections[DEFAULT_DB_ALIAS]

    def like(**own: Any) -> Row:
        return row({**other.values, **{name: to_db(name, value, database) for name, value in own.items()}})

    return like


def row(values: Mapping[str, Any]) -> Row:
    size = 0
    for name in _DOCUMENTS:
        if (document := values.get(name)) is not None:
            size += _bytes(document)
    return Row(values, size)


def _bytes(value: Any) -> int:
    text = getattr(value, "obj", value)  # of a document for PostgreSQL
    if not isinstance(text, str):
        return 0
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


def chunks(items: Iterable[T], most: int = MOST) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, most)):
        yield chunk


class Sized(Protocol):
    @property
    def size(self) -> int: ...


S = TypeVar("S", bound=Sized)


def statements(items: Iterable[S], most: int = MOST) -> Iterator[list[S]]:
    """In groups that one statement takes: `most` rows, and `MOST_BYTES` but for a row that alone has more."""
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


def insert(rows: Sequence[Row]) -> None:
    """Insert the rows, at most `MOST` of them. Raises `IntegrityError` for all when one key is taken.

    One statement, which is a transaction by itself: each step of a statement gives up the interpreter, and busy threads
    let the writer wait for it each time. Most columns have one value in all rows, which is given once. In the order of
    their keys: two who insert the same ones never wait for each other.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]
    own, common = _columns(sorted(rows, key=lambda row: row.values["idempotency_key"] or ""))
    query = _insert_sql(tuple(own), tuple(common), len(rows))
    with transaction.atomic() if database.in_atomic_block else nullcontext(), database.cursor() as cursor:
        cursor.execute(query, [*common.values(), *itertools.chain.from_iterable(zip(*own.values(), strict=True))])


@functools.lru_cache(maxsize=SHAPES)
def _insert_sql(own: Sequence[str], common: Sequence[str], count: int) -> str:
    names = ", ".join(map(connections[DEFAULT_DB_ALIAS].ops.quote_name, (*own, *common)))
    selected = ", ".join(["own.*", *["%s"] * len(common)])
    values = ", ".join([f"({marks(len(own))})"] * count)
    return f"INSERT INTO {Job._meta.db_table} ({names}) SELECT {selected} FROM (VALUES {values}) AS own"  # noqa: S608 - own names


def update(rows: Sequence[Row], also: str, where: str, values: Sequence[Any]) -> int:
    """Change these rows, whose columns are the id and what is to be written, `also` what SQL says, `where` that still
    holds of `job` for these `values`. Returns how many rows it did hold for. One statement, as `insert`.

    They are locked in the order of their ids, as everywhere: else two who change the same rows could wait for each
    other.
    """
    database: Any = connections[DEFAULT_DB_ALIAS]
    own, common = _columns(rows)
    query = _update_sql(tuple(own), tuple(common), len(rows), also, where)
    of_where = values if database.features.has_select_for_update else ()
    given = itertools.chain.from_iterable(zip(*own.values(), strict=True))
    with database.cursor() as cursor:
        cursor.execute(query, [*common.values(), *given, *of_where, *values])
        return int(cursor.rowcount)


@functools.lru_cache(maxsize=SHAPES)
def _update_sql(own: Sequence[str], common: Sequence[str], count: int, also: str, where: str) -> str:
    assigned = [f"{name} = %s" for name in common]
    assigned += [f"{name} = own.column{number}" for number, name in enumerate(own, 1) if name != "id"]
    of_own = f"(VALUES {', '.join([f'({marks(len(own))})'] * count)}) AS own"
    table, is_own = Job._meta.db_table, f"job.id = own.column{1 + own.index('id')} AND {where}"
    if connections[DEFAULT_DB_ALIAS].features.has_select_for_update:
        in_order = f"JOIN {table} AS job ON {is_own} ORDER BY job.id FOR UPDATE OF job"
        of_own = f"(SELECT own.* FROM {of_own} {in_order}) AS own"  # noqa: S608 - own names
    return f"UPDATE {table} AS job SET {', '.join([*assigned, also])} FROM {of_own} WHERE {is_own}"  # noqa: S608 - own names


def _columns(rows: Sequence[Row]) -> tuple[dict[str, tuple[Any, ...]], dict[str, Any]]:
    """The columns in which rows differ, and the value in each of the others. Ids differ."""
    columns = dict(zip(rows[0].values, zip(*(row.values.values() for row in rows), strict=True), strict=True))
    own = {name: column for name, column in columns.items() if name == "id" or column.count(column[0]) < len(rows)}
    return own, {name: column[0] for name, column in columns.items() if name not in own}


def to_db(name: str, value: Any, database: Any) -> Any:
    """A value of the column `name` as the database takes it."""
    field = PREPARED[name]
    if field is None or value is None:
        return value
    return ids_to_db([value], database)[0] if type(value) is UUID else field.get_db_prep_value(value, database)


def ids_to_db(ids: Iterable[UUID], database: Any) -> list[Any]:
    """As `to_db`, at a tenth of its cost."""
    return list(ids) if database.features.has_native_uuid_field else [f"{each.int:032x}" for each in ids]


def finished(ids: Collection[UUID]) -> dict[UUID, Changes]:
    """What is told of those of these jobs that are finished."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    with database.cursor() as cursor:
        cursor.execute(_finished_sql(len(ids)), [*ids_to_db(ids, database), *TERMINAL])
        rows = cursor.fetchall()
    return {told[0]: dict(zip(_TOLD, told, strict=True)) for told in from_db(rows, _TOLD, database)}


def ended(ids: Iterable[UUID]) -> set[UUID]:
    """Return those of these jobs that are finished."""
    found = (Job.objects.filter(pk__in=chunk, status__in=TERMINAL).order_by() for chunk in chunks(ids))
    return {job_id for jobs in found for job_id in jobs.values_list("pk", flat=True)}


@functools.lru_cache(maxsize=SHAPES)
def _finished_sql(count: int) -> str:
    where = f"id IN ({marks(count)}) AND status IN ({marks(len(TERMINAL))})"
    return f"SELECT {', '.join(_TOLD)} FROM {Job._meta.db_table} WHERE {where}"  # noqa: S608 - own names


def change(job: Job, changes: Changes) -> None:
    """What was not told is read when it is asked for."""
    values = vars(job)
    values.update(changes)
    for name in _UNTOLD:
        values.pop(name, None)


def held(batch: UUID, ids: Collection[UUID]) -> set[UUID]:
    """Those of `ids` that `batch` still runs."""
    running = Job.objects.filter(pk__in=ids, batch=batch, status=Status.RUNNING)
    return set(running.order_by().values_list("pk", flat=True))


def inputs_of_parts(whole: UUID) -> list[Any]:
    """In order."""
    parts = Job.objects.filter(whole=whole).order_by("place").values_list("inputs", flat=True)
    return [item for part in parts for item in part]


def outputs_of_parts(whole: UUID) -> RawSQL:
    """In order, put together by the database."""
    database: Any = connections[DEFAULT_DB_ALIAS]
    sql = _OUTPUTS[database.vendor].format(table=Job._meta.db_table)
    return RawSQL(sql, [to_db("whole", whole, database)], output_field=models.TextField())  # noqa: S611 - our own


_OUTPUTS = {
    "postgresql": """SELECT jsonb_agg(item.value ORDER BY part.place, item.number) FROM {table} AS part,
        LATERAL jsonb_array_elements(part.output) WITH ORDINALITY AS item(value, number) WHERE part.whole = %s""",
    "sqlite": """SELECT '[' || group_concat(substr(output, 2, length(output) - 2), ',') || ']'
        FROM (SELECT output FROM {table} WHERE whole = %s ORDER BY place)""",
}


def from_db(rows: Sequence[Sequence[Any]], names: tuple[str, ...], database: Any) -> Iterator[Sequence[Any]]:
    """Each row's values as the ORM would convert them. `names` are columns, which are converted one after the other:
    that costs half of what it does row by row."""
    columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
    for place, convert in _converters(database.alias, names) if columns else ():
        columns[place] = convert(columns[place], database)
    return zip(*columns, strict=True)


Convert = Callable[[Sequence[Any], Any], Sequence[Any]]  # of a column, from this database


@functools.cache
def _converters(alias: str, names: tuple[str, ...]) -> list[tuple[int, Convert]]:
    """Of the columns that are read as something else than what is stored, by their place. Nothing is read as
    nothing."""
    database = connections[alias]
    fields: Sequence[Any] = [Job._meta.get_field(name) for name in names]
    columns = [field.get_col(Job._meta.db_table) for field in fields]
    return [(place, convert) for place, column in enumerate(columns) for convert in _convert(column, database)]


def _convert(column: Any, database: Any) -> list[Convert]:
    if isinstance(column.target, models.UUIDField) and not database.features.has_native_uuid_field:
        return [lambda values, _: [None if value is None else id_of_hex(value) for value in values]]
    if isinstance(column.target, JSONField):
        return [lambda values, _: [None if value is None else orjson.loads(value) for value in values]]
    converters = [*database.ops.get_db_converters(column), *column.get_db_converters(database)]
    return [functools.partial(_by_value, column, converter) for converter in converters]


def _by_value(column: Any, convert: Callable[..., Any], values: Sequence[Any], database: Any) -> Sequence[Any]:
    """Each once: of moments, which take as long as all else, many rows share theirs."""
    known = {value: None if value is None else convert(value, column, database) for value in set(values)}
    return [known[value] for value in values]


def marks(count: int) -> str:
    """So many placeholders of a statement."""
    return ", ".join(["%s"] * count)


def now_sql() -> str:
    """The clock of the database: no two hosts' clocks are ever compared. Doubled where it passes through `%`."""
    return in_seconds(0.0, connections[DEFAULT_DB_ALIAS].vendor)[0]


@functools.cache
def in_seconds(seconds: float, vendor: str) -> tuple[str, Sequence[Any]]:
    """So much later than now, as SQL and its values. To compile it takes a millisecond."""
    moment: Any = Now() + datetime.timedelta(seconds=seconds) if seconds else Now()
    query = Job.objects.all().query
    sql, values = query.get_compiler(connection=connections[DEFAULT_DB_ALIAS]).compile(moment.resolve_expression(query))
    return str(sql), values
