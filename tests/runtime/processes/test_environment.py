"""What the launchers' variables say of where rank 0 is: address, port, job and directory. (Ranks: test_launch.)"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halocline.runtime.processes.environment import LauncherRank, detect, first_node

OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
OPEN_MPI_4 = {**OPEN_MPI, "OMPI_MCA_orte_precondition_transports": "b636c9-a8dfaa", "PMIX_NAMESPACE": "3244883969"}
HYDRA = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "2"}
SLURM |= {"SLURM_STEP_NODELIST": "gpu[03-04]", "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_STEP_NUM_NODES": "2"}


def place(**env: str) -> LauncherRank:
    found = detect(env)
    assert found is not None
    return found


@given(
    stem=st.from_regex(r"[a-z]{1,4}", fullmatch=True),
    first=st.integers(0, 999),
    width=st.integers(1, 4),
    more=st.sampled_from(["", "-1200", ",1200", "-1199,1201-1300"]),
    rest=st.sampled_from(["", "-ib", "n[01-16]", "n[2,9].cluster"]),
    others=st.sampled_from(["", ",login", ",big[1-2],x[3]y"]),
)
def test_the_first_machine_of_any_list(stem: str, first: int, width: int, more: str, rest: str, others: str) -> None:
    end = {"": "", "-ib": "-ib", "n[01-16]": "n01", "n[2,9].cluster": "n2.cluster"}[rest]
    number = f"{first:0{width}}"
    assert first_node(f"{stem}[{number}{more}]{rest}{others}") == f"{stem}{number}{end}"
    assert first_node(f"{stem}{number}{rest}{others}") == f"{stem}{number}{end}"


@pytest.mark.parametrize("nodes", ["", ",a", "gpu[", "gpu[]", "gpu[1-2", "a b"])
def test_a_list_that_cannot_be_read_is_refused(nodes: str) -> None:
    with pytest.raises(ValueError, match="set MASTER_ADDR"):
        first_node(nodes)


def test_master_addr_and_port_come_first() -> None:
    given_ = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29999", "HALOCLINE_RENDEZVOUS": "/shared"}
    for launcher in (OPEN_MPI, OPEN_MPI_4, HYDRA, SLURM):
        assert (place(**launcher, **given_).address, place(**launcher, **given_).port) == ("10.0.0.1", 29999)


def test_an_empty_master_addr_is_none() -> None:
    """MASTER_ADDR=$(a command that failed)."""
    assert place(**OPEN_MPI_4, MASTER_ADDR="") == place(**OPEN_MPI_4)
    assert place(**SLURM, MASTER_ADDR="").address == "gpu03"


def test_slurm_names_rank_0s_machine_and_its_jobs_have_ports_of_their_own() -> None:
    assert place(**SLURM).address == "gpu03" and place(**SLURM).job == "4711.2"
    ports = [
        place(**{**SLURM, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step)}).port
        for job in range(4711, 5711)
        for step in (0, 1, 2)
    ]
    assert len(set(ports)) == len(ports) and 20000 <= min(ports) and max(ports) < 30000
    # Where the user gives the order of the machines, the list does not tell rank 0's.
    arbitrary = place(**SLURM, SLURM_DISTRIBUTION="arbitrary")
    assert (arbitrary.address, arbitrary.port, arbitrary.rendezvous) == ("", 0, Path.cwd())


def test_srun_that_speaks_pmi_is_slurm() -> None:
    """srun --mpi=pmi2 sets MPICH's names, too, and answers in another protocol."""
    found = place(**SLURM, PMI_RANK="5", PMI_SIZE="8", PMI_FD="7")
    assert (found.launcher, found.address, found.pmi) == ("Slurm", "gpu03", None)


@pytest.mark.parametrize(
    ("env", "job"),
    [
        (OPEN_MPI_4, "b636c9-a8dfaa"),
        ({**OPEN_MPI, "PMIX_NAMESPACE": "prterun-login-6113@1"}, "prterun-login-6113@1"),
        (
            {"MV2_COMM_WORLD_RANK": "5", "MV2_COMM_WORLD_SIZE": "8", "MPDMAN_KVS_TEMPLATE": "kvs_417_login_99"},
            "kvs_417_login_99",
        ),
    ],
)
def test_rank_0_tells_in_the_working_directory(env: dict[str, str], job: str) -> None:
    found = place(**env)
    assert (found.address, found.port, found.job, found.rendezvous) == ("", 0, job, Path.cwd())
    assert place(**env, MASTER_PORT="29999").port == 29999
    assert place(**env, HALOCLINE_RENDEZVOUS="/shared").rendezvous == Path("/shared")


def test_on_one_machine_rank_0_tells_in_the_temporary_directory() -> None:
    for env in (OPEN_MPI_4, SLURM):
        size = next(name for name in env if name.endswith(("_SIZE", "_NTASKS")))
        one = {**env, "OMPI_COMM_WORLD_LOCAL_SIZE": "8", "SLURM_STEP_NUM_NODES": "1", size: "8"}
        found = place(**one)
        assert (found.address, found.port, found.rendezvous) == ("127.0.0.1", 0, Path(tempfile.gettempdir()))


def test_mpichs_launcher_is_asked() -> None:
    found = place(**HYDRA, PMI_FD="7")
    assert (found.address, found.port, found.pmi, found.rendezvous) == ("", 0, 7, None)
    shared = place(**HYDRA, PMI_FD="7", HALOCLINE_RENDEZVOUS="/shared")
    assert (shared.pmi, shared.rendezvous) == (None, Path("/shared"))


@pytest.mark.parametrize("env", [OPEN_MPI, HYDRA])
def test_where_nobody_can_tell_the_ways_out_are_named(env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"4 of them on this machine, .* set MASTER_ADDR .* HALOCLINE_RENDEZVOUS"):
        detect(env)
