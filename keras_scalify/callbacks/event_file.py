"""Scalars for TensorBoard, written without TensorFlow."""

import os
import pathlib
import socket
import time


class EventFile:
    """A TensorBoard event file, in the format that `tensorboard --logdir` reads.

    The package `tensorboard` writes the records; nothing imports TensorFlow.

    Args:
        log_dir: folder of the file; it is made.

    Raises:
        ImportError: the package tensorboard is not installed.
    """

    def __init__(self, log_dir):
        try:
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise ImportError(
                "`log_dir` needs the package tensorboard: pip install tensorboard"
            ) from error
        folder = pathlib.Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
        now, host = time.time(), socket.gethostname()
        name = f"events.out.tfevents.{now:.6f}.{host}.{os.getpid()}.scales"
        self._file = RecordWriter((folder / name).open("wb"))
        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._write(file_version="brain.Event:2")

    def _write(self, **fields) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._file.write(event.SerializeToString())
        self._file.flush()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        """Write one number a tag, at a step."""
        value = self._summary.Value
        rows = [value(tag=tag, simple_value=v) for tag, v in values.items()]
        self._write(step=step, summary=self._summary(value=rows))

    def close(self) -> None:
        """Close the file."""
        self._file.close()
