"""Teaches hypothesis to draw plans of every schedule, so that a test can say `st.from_type(Plan)`."""

from hypothesis import strategies as st

from halocline.plan import SCHEDULES, Plan, Stage

small = st.integers(1, 3)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    schedule = draw(st.sampled_from(SCHEDULES))
    chunks = draw(st.integers(2, 3)) if schedule == "interleaved" else 1
    places = draw(st.integers(1, 4)) * (2 if schedule == "chimera" else 1)
    dims = draw(st.integers(1, 3))
    counts = st.integers(1, 2 if dims == 3 else 3)
    shapes = [(tuple(draw(counts) for _ in range(dims)), draw(small), draw(st.integers(1, 2))) for _ in range(places)]
    stages, first = [], 0
    for tiles, lanes, tensor in shapes * chunks:
        stop = first + draw(small)
        stages.append(Stage((first, stop), tiles, lanes, tensor, recompute=draw(st.booleans())))
        first = stop
    pipes = (
        2 if schedule in ("gems", "chimera") else draw(small.map(lambda n: min(n, 2))) if schedule == "capped" else 1
    )
    passes = draw(st.sampled_from([2, 4, 6])) if schedule == "gems" else None
    microbatches = draw(st.integers(1, 4)) * (passes or (places if schedule == "interleaved" else pipes))
    return Plan(
        stages=tuple(stages),
        schedule=schedule,
        microbatches=microbatches,
        pipes=pipes,
        replicas=draw(small),
        chunks=chunks,
        passes=passes,
        cap=draw(st.none() | st.floats(1, 1e12)) if schedule == "capped" else None,
        fused=draw(st.integers(0, 4)),
        batch=draw(st.none() | st.integers(3, 9).map(lambda samples: samples * microbatches)),
        image=draw(st.none() | st.just(tuple(draw(st.integers(3, 4096)) for _ in range(dims)))),
    )


st.register_type_strategy(Plan, plans())
