"""Schedules: a run is started at the times of a cron expression or an interval, on the clock of a zone.

Rule: a firing is a run whose id follows from schedule and occurrence. So however many workers fire, and wherever one dies, an occurrence starts one run.
What a schedule has decided is kept in the store, beside the runs; no worker has anything that a restart loses.
Start with `calendar` (when), then `firing` (what a worker does); `door` is `engine.schedules`.
"""
