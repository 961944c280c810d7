"""The operation that a command is: one id in all that is logged for it, in the agent's too, and in its error."""

from contextvars import ContextVar

INTERRUPTED = 130  # what a command ends with that was interrupted

_current: ContextVar[str] = ContextVar("operation", default="")


def begin_operation() -> str:
    """From now on all that this command logs has the id of a new operation, which is returned. A second call returns the same one."""
    if found := _current.get():
        return found
    from structlog.contextvars import bind_contextvars

    from headwater.admin.operations import new_operation_id

    begun = new_operation_id()
    _current.set(begun)
    bind_contextvars(operation=begun)
    return begun


def with_operation(message: str) -> str:
    """An error's message, and the operation that it ended, if there is one."""
    return f"{message} (operation {_current.get()})" if _current.get() else message
