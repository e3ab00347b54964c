from . import figures as figures
from . import table as table
from .data_files import published_rows as published_rows
from .scores import FrontierSummary as FrontierSummary
from .scores import frontier as frontier
from .table import frontier_table as frontier_table
from .table import frontier_text as frontier_text
