"""docker/k8s against a schema, and against what the scripts and images that they use really do."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml

pydantic = pytest.importorskip("pydantic", reason="needs pydantic, which requirements.txt names")
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError  # noqa: E402
from pydantic.alias_generators import to_camel  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docker" / "k8s"
ENTRY = ["sh", "tools/scripts/cluster_train.sh"]

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Quantity = int | Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$")]


class Strict(BaseModel):
    """The API's fields that the manifests use, in the API's spelling; any other is an error."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, strict=True)


class Metadata(Strict):
    name: Name


class FieldRef(Strict):
    field_path: Literal["status.podIP", "metadata.name"]


class ValueFrom(Strict):
    field_ref: FieldRef


class Variable(Strict):
    name: Annotated[str, Field(pattern="^[A-Z_]+$")]
    value: str | None = None  # a number must be quoted
    value_from: ValueFrom | None = None


class Resources(Strict):
    limits: dict[str, Quantity]
    requests: dict[str, Quantity] = {}


class Mount(Strict):
    name: Name
    mount_path: Annotated[str, Field(pattern="^/")]
    sub_path: str | None = None


class Container(Strict):
    name: Name
    image: str
    command: list[str]
    args: list[str]
    env: list[Variable]
    resources: Resources
    volume_mounts: list[Mount]


class EmptyDir(Strict):
    medium: Literal["Memory"]
    size_limit: Quantity


class Claim(Strict):
    claim_name: Name


class Volume(Strict):
    name: Name
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: Claim | None = None


class SecurityContext(Strict):
    run_as_non_root: Literal[True]
    run_as_user: int
    fs_group: int


class Pod(Strict):
    restart_policy: Literal["Never", "OnFailure"] | None = None
    subdomain: Name | None = None
    termination_grace_period_seconds: Annotated[int, Field(gt=30)]
    security_context: SecurityContext
    containers: Annotated[list[Container], Field(min_length=1, max_length=1)]
    volumes: list[Volume]


class Template(Strict):
    spec: Pod


class OnExitCodes(Strict):
    container_name: Name
    operator: Literal["In", "NotIn"]
    values: list[int]


class OnPodCondition(Strict):
    type: Literal["DisruptionTarget"]
    status: Literal["True", "False", "Unknown"] = "True"


class Rule(Strict):
    action: Literal["Ignore", "FailJob", "Count"]
    on_exit_codes: OnExitCodes | None = None
    on_pod_conditions: list[OnPodCondition] | None = None


class FailurePolicy(Strict):
    rules: list[Rule]


class JobSpec(Strict):
    completion_mode: Literal["Indexed"]
    completions: int
    parallelism: int
    backoff_limit: int
    pod_failure_policy: FailurePolicy
    template: Template


class Job(Strict):
    api_version: Literal["batch/v1"]
    kind: Literal["Job"]
    metadata: Metadata
    spec: JobSpec


class Port(Strict):
    name: Name
    port: Annotated[int, Field(gt=0, lt=65536)]


class ServiceSpec(Strict):
    cluster_ip: Annotated[Literal["None"], Field(alias="clusterIP")]
    publish_not_ready_addresses: Literal[True]  # a pod that waits for the others is not ready yet
    selector: dict[str, str]
    ports: list[Port]


class Service(Strict):
    api_version: Literal["v1"]
    kind: Literal["Service"]
    metadata: Metadata
    spec: ServiceSpec


class Replicas(Strict):
    replicas: int
    restart_policy: Literal["Always", "OnFailure", "Never", "ExitCode"]
    template: Template


class ReplicaSpecs(Strict):
    master: Annotated[Replicas, Field(alias="Master")]
    worker: Annotated[Replicas, Field(alias="Worker")]


class RunPolicy(Strict):
    backoff_limit: int
    clean_pod_policy: Literal["Running", "All", "None"]


class PyTorchJobSpec(Strict):
    run_policy: RunPolicy
    pytorch_replica_specs: ReplicaSpecs


class PyTorchJob(Strict):
    api_version: Literal["kubeflow.org/v1"]
    kind: Literal["PyTorchJob"]
    metadata: Metadata
    spec: PyTorchJobSpec


Manifest = TypeAdapter(Annotated[Service | Job | PyTorchJob, Field(discriminator="kind")])


def documents(name: str) -> list[Any]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


@pytest.fixture
def job() -> Job:
    return Manifest.validate_python(documents("job.yaml")[1])


@pytest.fixture
def pytorchjob() -> PyTorchJob:
    return Manifest.validate_python(documents("pytorchjob.yaml")[0])


@pytest.fixture
def pods(job, pytorchjob) -> list[Pod]:
    """Of the indexed Job, of the PyTorchJob's master, of its workers."""
    roles = pytorchjob.spec.pytorch_replica_specs
    return [part.template.spec for part in (job.spec, roles.master, roles.worker)]


def environment(pod: Pod) -> dict[str, str | None]:
    return {variable.name: variable.value for variable in pod.containers[0].env}


def test_every_manifest_fits_the_schema():
    kinds = {}
    for file in sorted(FOLDER.glob("*.yaml")):
        kinds[file.name] = [Manifest.validate_python(document).kind for document in documents(file.name)]
    assert kinds == {"job.yaml": ["Service", "Job"], "pytorchjob.yaml": ["PyTorchJob"]}


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["spec", "completionmode"], "Indexed", "completionmode"),
        (["spec", "completions"], "2", "completions"),
        (["metadata", "name"], "My_Job", "name"),
        (["spec", "template", "spec", "containers", 0, "env", 0, "value"], 2, "value"),
        (["spec", "template", "spec", "containers", 0, "resources", "limits", "memory"], "128 GB", "memory"),
        (["spec", "template", "spec", "terminationGracePeriodSeconds"], 5, "terminationGracePeriodSeconds"),
    ],
)
def test_the_schema_refuses_mistakes(path, value, message):
    manifest = documents("job.yaml")[1]
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError, match=message):
        Manifest.validate_python(manifest)


@pytest.mark.parametrize("name", ["job.yaml", "pytorchjob.yaml"])
def test_kubernetes_own_schema_agrees(name):
    """A PyTorchJob has its operator's schema; what it says of pods has Kubernetes'."""
    validator = pytest.importorskip("kubernetes_validate", reason="needs pip install kubernetes-validate (100 MB)")
    for document in documents(name):
        roles = document["spec"].get("pytorchReplicaSpecs")
        parts = [document]
        if roles:
            outside = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": document["metadata"]}
            parts = [outside | {"template": role["template"]} for role in roles.values()]
        for part in parts:
            validator.validate(part, "1.33", strict=True)


def test_all_run_the_same_entry_command(pods):
    assert (ROOT / ENTRY[1]).is_file()
    for pod in pods:
        assert pod.containers[0].command == ENTRY
    assert ENTRY[1] in (ROOT / "tools/scripts/slurm_array.sh").read_text()


def test_the_options_are_those_of_the_training(pods, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    from _train_options import parse

    for pod in pods:
        given = parse(None, pod.containers[0].args)
        assert (ROOT / given.cfg_file).is_file()
        assert given.ckpt_save_time_interval <= 600, "what a lost machine costs at most, in seconds"
    monkeypatch.delitem(sys.modules, "_train_options")


def test_as_many_machines_and_gpus_as_the_script_is_told(job, pytorchjob, pods):
    roles = pytorchjob.spec.pytorch_replica_specs
    machines = [job.spec.completions, *[roles.master.replicas + roles.worker.replicas] * 2]
    assert job.spec.parallelism == job.spec.completions, "all machines have to run at once"
    for pod, count in zip(pods, machines, strict=True):
        variables = environment(pod)
        assert variables["NNODES"] == str(count)
        assert variables["NPROC_PER_NODE"] == str(pod.containers[0].resources.limits["nvidia.com/gpu"])


def test_the_jobs_pods_find_the_first_of_them(job, pods):
    service = Manifest.validate_python(documents("job.yaml")[0])
    name = job.metadata.name
    assert service.spec.selector == {"job-name": name}
    assert pods[0].subdomain == service.metadata.name
    assert environment(pods[0])["MASTER_ADDR"] == f"{name}-0.{service.metadata.name}"
    (port,) = (p.port for p in service.spec.ports)
    assert f"${{MASTER_PORT:-{port}}}" in (ROOT / ENTRY[1]).read_text()


def test_preemption_is_no_failure(job, pytorchjob, pods):
    """The exit status that the script has after a signal is not counted; a wrong configuration ends a PyTorchJob."""
    assert "exit 138" in (ROOT / ENTRY[1]).read_text()
    codes, conditions = job.spec.pod_failure_policy.rules
    assert codes.action == conditions.action == "Ignore"
    assert codes.on_exit_codes.values == [138] and codes.on_exit_codes.operator == "In"
    assert codes.on_exit_codes.container_name == pods[0].containers[0].name
    assert conditions.on_pod_conditions[0].type == "DisruptionTarget"
    assert pods[0].restart_policy == "Never", "a failure policy asks for it"
    roles = pytorchjob.spec.pytorch_replica_specs
    assert {roles.master.restart_policy, roles.worker.restart_policy} == {"ExitCode"}
    assert pods[1].containers[0].name == "pytorch", "the name that the operator looks for"


def test_pods_fit_the_image(pods):
    """Its user without root's rights, its working folder, and more shared memory than a container's 64 MiB."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    for pod in pods:
        user = pod.security_context.run_as_user
        assert f"\nUSER {user}\n" in dockerfile and pod.security_context.fs_group == user
        mounts = {mount.mount_path: mount.name for mount in pod.containers[0].volume_mounts}
        volumes = {volume.name: volume for volume in pod.volumes}
        assert set(mounts.values()) == set(volumes)
        assert volumes[mounts["/dev/shm"]].empty_dir.size_limit == "16Gi"
        folder = next(line.split()[1] for line in dockerfile.splitlines() if line.startswith("WORKDIR"))
        for name in ("data", "output"):
            assert volumes[mounts[f"{folder}/{name}"]].persistent_volume_claim is not None
