"""What goes where: plans, layouts, partitions, and the command lines of now-dl and Merak read as plans."""

from halocline.plan.layout import Layout, Link, Role
from halocline.plan.plan import SCHEDULES, Plan
from halocline.plan.stage import Stage

__all__ = ["SCHEDULES", "Layout", "Link", "Plan", "Role", "Stage"]
