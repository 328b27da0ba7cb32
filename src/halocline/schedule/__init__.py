"""In which order: the instruction set, one file per schedule, lowering to messages, the checker and the text form."""

from halocline.schedule.check import check
from halocline.schedule.generate import generate
from halocline.schedule.instruction import Instruction, Schedule
from halocline.schedule.walk import ScheduleError, walk

__all__ = ["Instruction", "Schedule", "ScheduleError", "check", "generate", "walk"]
