"""A CSV file that grows row by row."""

import csv
import pathlib


class TableFile:
    """Appends dicts of the same keys to a CSV file, with a header if it is new.

    Args:
        path: of the file; its folder is made.
    """

    def __init__(self, path):
        self.path = pathlib.Path(path)

    def append(self, rows: list[dict]) -> None:
        """Write the rows.

        Raises:
            ValueError: the file has other columns.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        columns = list(rows[0])
        with self.path.open("a+", newline="", encoding="utf-8") as file:
            file.seek(0)
            header = next(csv.reader(file), None)
            if header not in (None, columns):
                raise ValueError(
                    f"`csv` must be a new file or one with the columns "
                    f"{', '.join(columns)}. Received: {self.path} with "
                    f"{', '.join(header)}"
                )
            writer = csv.DictWriter(file, columns)
            if header is None:
                writer.writeheader()
            writer.writerows(rows)
