//! Lines of logs and the causes that they name. The lines are those of PyTorch, NCCL, torchrun, the hubs and ms-swift,
//! from runs against servers that refuse, and from reports of their users.

use training_log::{Cause, Entry, Parser};

/// Whether the line is an error, and its cause.
fn read(line: &str) -> Option<Option<Cause>> {
    let mut seen = Vec::new();
    let mut parser = Parser::default();
    let mut report = |entry: Entry<'_>| {
        seen.push(match entry {
            Entry::Error { cause, line: shown } => {
                assert_eq!(shown, line.trim());
                Some(cause)
            }
            Entry::Text(_) => None,
            other => unreachable!("{line}: {other:?}"),
        });
    };
    parser.feed(line.as_bytes(), &mut report);
    parser.finish(&mut report);
    assert_eq!(seen.len(), 1, "{line}");
    seen[0]
}

fn all_are(cause: Cause, lines: &[&str]) {
    for line in lines {
        assert_eq!(read(line), Some(Some(cause)), "{line}");
        assert_eq!(read(&format!("[rank62]: {line}")), Some(Some(cause)), "{line} of a rank");
    }
}

#[test]
fn memory_of_accelerators() {
    all_are(
        Cause::CudaOutOfMemory,
        &[
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 19.14 GiB. GPU 6 has a total capacity of 79.33 GiB",
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; 79.33 GiB total capacity)",
            "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)",
            "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB",
            "RuntimeError: CUDA error: out of memory",
            "torch.AcceleratorError: CUDA error: out of memory",
            "RuntimeError: NPU out of memory. Tried to allocate 260.00 MiB (NPU 0; 28.50 GiB total capacity; 27 GiB)",
            "torch.OutOfMemoryError: NPU out of memory. Tried to allocate 260.00 MiB",
            "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GiB, other allocations: 1 GiB, max allowed: 9 GiB).",
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 1.00 GiB.",
            "RuntimeError: HIP error: out of memory",
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "Cuda failure 2 'out of memory'",
            "Cuda failure 'out of memory'",
        ],
    );
}

#[test]
fn memory_of_the_host() {
    all_are(
        Cause::HostOutOfMemory,
        &[
            "MemoryError",
            "MemoryError: Unable to allocate 3.20 GiB for an array with shape (1, 2)",
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 3.20 GiB for an array",
            "pyarrow.lib.ArrowMemoryError: malloc of size 4096 failed",
            "OSError: [Errno 12] Cannot allocate memory",
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried \
             to allocate 1 bytes. Error code 12 (Cannot allocate memory)",
            "RuntimeError: DataLoader worker (pid 22048) is killed by signal: Killed. ",
            "RuntimeError: DataLoader worker (pid 3002) is killed by signal: Bus error. It is possible that dataloader's \
             workers are out of shared memory. Please try to raise your shared memory limit.",
            "RuntimeError: unable to mmap 4096 bytes from file </torch_7_1>: Cannot allocate memory (12)",
            "RuntimeError: unable to write to file </torch_7_1>: No space left on device (28)",
            "OSError: [Errno 28] No space left on device: '/dev/shm/x'",
            "terminate called after throwing an instance of 'std::bad_alloc'",
        ],
    );
}

#[test]
fn full_volumes() {
    all_are(
        Cause::OutOfSpace,
        &[
            "OSError: [Errno 28] No space left on device",
            "OSError: [Errno 28] No space left on device: '/output/checkpoint-5/optimizer.pt'",
            "OSError: [Errno 122] Disk quota exceeded",
            "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: \
             \"No space left on device\" })",
            "safetensors._safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
            "No space left on device (os error 28)",
            "RuntimeError: write(): fd 29 failed with No space left on device",
            "cp: error writing '/output/x': No space left on device",
            "cp: error writing '/output/x': Disk quota exceeded",
        ],
    );
}

#[test]
fn hubs_that_refuse() {
    all_are(
        Cause::SourceUnauthorized,
        &[
            "huggingface_hub.errors.GatedRepoError: 403 Client Error. (Request ID: Root=1-6614)",
            "huggingface_hub.utils._errors.GatedRepoError: 401 Client Error. (Request ID: Root=1-6614)",
            "Cannot access gated repo for url https://huggingface.co/meta-llama/Llama-2-7b/resolve/main/config.json.",
            "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error. (Request ID: Root=1-67ff)",
            "huggingface_hub.errors.HfHubHTTPError: Client error '401 Unauthorized' for url \
             'https://huggingface.co/api/models/a/b/revision/main'",
            "httpx.HTTPStatusError: Client error '403 Forbidden' for url 'https://hf-mirror.com/api/models/a/b/revision/main'",
            "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/a/b/resolve/main/x",
            "huggingface_hub.errors.HfHubHTTPError: 403 Forbidden: nope.",
            "403 Forbidden: nope.",
            "huggingface_hub.errors.LocalEntryNotFoundError: Got: HfHubHTTPError: 403 Forbidden: nope.",
            "huggingface_hub.errors.LocalTokenNotFoundError: Token is required (`token=True`), but no token found.",
            "OSError: You are trying to access a gated repo.",
            "datasets.exceptions.DatasetNotFoundError: Dataset 'a/b' is a gated dataset on the Hub. Visit the dataset page",
            "modelscope_hub.errors.AuthenticationError: [E3001] [401] token expired (request_id=x) | code=10010205001",
            "modelscope_hub.errors.PermissionDeniedError: [E3002] [403] no (request_id=x) | code=10010205001",
            "requests.exceptions.HTTPError: [E3001] [401] token expired (request_id=x) | code=10010205001",
            "requests.exceptions.HTTPError: Authentication token does not exist, failed to access a/b which may not exist or \
             may be private. Please login first.",
            "requests.exceptions.HTTPError: The authentication token is invalid, failed to access a/b.",
            "modelscope.hub.errors.NotLoginException: Authentication failed!",
        ],
    );
}

#[test]
fn models_and_datasets_that_do_not_exist() {
    all_are(
        Cause::SourceNotFound,
        &[
            "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1-67ff)",
            "Repository Not Found for url: https://huggingface.co/api/models/a/b/revision/main.",
            "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.",
            "huggingface_hub.errors.EntryNotFoundError: 404 Client Error. (Request ID: x)",
            "httpx.HTTPStatusError: Client error '404 Not Found' for url 'http://mirror/api/models/a/b/revision/main'",
            "OSError: a/b is not a local folder and is not a valid model identifier listed on 'https://huggingface.co/models'",
            "OSError: dev is not a valid git identifier (branch name, tag name or commit id) that exists for this model name.",
            "OSError: a/b does not appear to have a file named config.json. Checkout 'https://huggingface.co/a/b/tree/main'",
            "datasets.exceptions.DatasetNotFoundError: Dataset 'a/b' doesn't exist on the Hub or cannot be accessed.",
            "modelscope_hub.errors.NotExistError: [E3020] [404] record not found (request_id=x) | code=10010205001",
            "requests.exceptions.HTTPError: [E3020] [404] record not found (request_id=x) | code=10010205001",
            "modelscope.hub.errors.NotExistError: The model: a/b has no revision: v9 !",
            "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://www.modelscope.cn/api/v1/models/a/b/revisions",
            "requests.exceptions.HTTPError: 404 Not Found: a/b does not exist or is not accessible, Request id: x for url: y",
            "requests.exceptions.HTTPError: Response details: {'Code': 10010205001, 'Message': '获取模型版本失败，信息：record not \
             found', 'RequestId': '147fe511', 'Success': False}, Request id: x",
        ],
    );
}

#[test]
fn hubs_that_cannot_be_reached() {
    all_are(
        Cause::SourceUnreachable,
        &[
            "huggingface_hub.errors.LocalEntryNotFoundError: Got: ConnectError: [Errno 111] Connection refused",
            "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and",
            "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach https://huggingface.co/api/models/a/b: offline mode",
            "huggingface_hub.errors.HfHubHTTPError: Server error '503 Service Unavailable' for url 'https://huggingface.co/x'",
            "huggingface_hub.errors.HfHubHTTPError: 429 Too Many Requests for url: https://huggingface.co/x.",
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cache",
            "ConnectionError: Couldn't reach 'a/b' on the Hub (LocalEntryNotFoundError)",
            "modelscope_hub.errors.NetworkError: [E1020] Connection failed: _DownloadHTTPConnectionPool(host='x', port=8765)",
            "modelscope_hub.errors.RateLimitError: [E1021] [429] slow down (request_id=x) | code=10010205001",
            "modelscope_hub.errors.ServerError: [E1002] [503] record not found (request_id=x) | code=10010205001",
            "modelscope.hub.errors.FileDownloadError: File x download incomplete, content_length: 5 but the file downloaded",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='www.modelscope.cn', port=443): Max retries exceeded",
            "urllib3.exceptions.MaxRetryError: HTTPConnectionPool(host='x', port=80): Max retries exceeded with url: \
             /api/v1/models/a/b/repo/files?Revision=master",
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='cas-bridge.xethub.hf.co', port=443): Read timed out.",
            "requests.exceptions.HTTPError: 502 Server Error: Bad Gateway for url: https://www.modelscope.cn/api/v1/models/a/b",
        ],
    );
}

#[test]
fn arguments_that_are_refused() {
    all_are(
        Cause::InvalidArguments,
        &[
            "ValueError: remaining_argv: ['--train_type', 'lora']",
            "sft.py: error: argument --learning_rate: invalid float value: 'x'",
            "sft.py: error: argument --rlhf_type: invalid choice: 'x' (choose from 'dpo', 'ppo')",
            "swift sft: error: unrecognized arguments: --x",
            "run.py: error: the following arguments are required: training_script",
            "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--x']",
        ],
    );
}

#[test]
fn connections_to_other_ranks() {
    all_are(
        Cause::PeerLost,
        &[
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.2]:28048",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [10.0.0.2]:25266: Connection reset by \
             peer [10.0.0.2]:1",
            "RuntimeError: Connection reset by peer",
            "RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no error",
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote \
             process exited or there was a network error, NCCL version 2.21.5",
            "torch.distributed.DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via \
             c10d key-value store by key '0', but store->get('0') got error: Connection reset by peer",
            "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
            "Net : Connection closed by remote peer 10.0.0.2<43236>",
            "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
            "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (m, 29500).",
            "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. \
             Connection refused",
            "[E1202 11:06:56.320643155 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout: \
             WorkNCCL(SeqNum=1236, OpType=ALLREDUCE, NumelIn=16515072, Timeout(ms)=600000) ran for 600043 milliseconds",
            "[E ProcessGroupNCCL.cpp:916] [Rank 3] NCCL watchdog thread terminated with exception: [Rank 3] Watchdog caught \
             collective operation timeout: WorkNCCL(SeqNum=1250)",
            "  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] \
             Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)",
        ],
    );
    let after_rank = "[rank3]:[E1202 11:06:56.3 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout";
    assert_eq!(read(after_rank), Some(Some(Cause::PeerLost)));
}

#[test]
fn other_errors_of_the_program() {
    all_are(
        Cause::UserError,
        &[
            "ValueError: The local path does not exist, dataset_id: `/data/x.jsonl`. os.path.exists(dataset_id): False",
            "FileNotFoundError: path: '/output/checkpoint-5'",
            "AssertionError",
            "KeyError: 'messages'",
            "ValueError: the queue of samples is out of memory",
            "Exception: x",
            "shutil.Error: x",
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 1, Hardware limit: 2",
            "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.",
            "cc1plus: error: unrecognized command line option '-x'",
            "RuntimeError: CUDA error: device-side assert triggered",
            "PermissionError: [Errno 13] Permission denied: '/output'",
            "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://api.wandb.ai/graphql",
            "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='api.wandb.ai', port=443): Max retries exceeded",
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "openai.AuthenticationError: Error code: 401 - bad key",
            "sqlalchemy.exc.DatabaseError: record not found",
            "OSError: /output/checkpoint-5 does not appear to have a file named config.json.",
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, invalid usage, NCCL version 2.21.5",
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: \
             29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "[default0]:ValueError: x",
            "(Worker pid=7) ValueError: x",
        ],
    );
}

#[test]
fn reports_of_an_end_name_no_cause() {
    for line in [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 26739 got signal: 15",
        "KeyboardInterrupt",
        "RuntimeError: DataLoader worker (pid 28257) is killed by signal: Terminated. ",
        "RuntimeError: DataLoader worker (pid(s) 14455) exited unexpectedly",
        "E1120 20:19:12.658000 17438 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 1",
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 7) of binary: /bin/x",
        "[2024-02-01 10:00:00,123] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 0",
        "  exitcode  : -9 (pid: 17463)",
        "  exitcode  : 1 (pid: 17463)",
        "  traceback : Signal 9 (SIGKILL) received by PID 17463",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "Fatal Python error: Segmentation fault",
    ] {
        assert_eq!(read(line), Some(None), "{line}");
    }
}

#[test]
fn text_is_no_error() {
    for line in [
        "CUDA out of memory",
        "my sample says: torch.OutOfMemoryError: CUDA out of memory.",
        "│ ValueError: x │",
        "    raise torch.OutOfMemoryError(\"CUDA out of memory. Tried to allocate 19.14 GiB.\")",
        "[rank1]:     raise ValueError('x')",
        "Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        "  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
        "  exitcode  : <N/A>",
        "2026-11-20 20:10:42,532 | WARNING | modelscope_hub.legacy_api | Repo unknown: Root=/ page=1 listing failed \
         (NetworkError), retry in 1s (1/4)",
        "[ERROR:swift] Dataset a/b load failed: subset_name=default,split=train with error: 404 Client Error",
        "/opt/torch/utils/data/dataloader.py:666: UserWarning: 'pin_memory' argument is set as true",
        "'[Errno 111] Connection refused' thrown while requesting HEAD https://huggingface.co/a/b",
        "W1120 20:19:12.592000 17438 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 17462 closing signal",
        "[rank0]:[W1120 20:40:18.746331350 reducer.cpp:1457] Warning: find_unused_parameters=True was specified",
        "Error: x",
        "Timeout: 30",
        "error: x",
        "x.cpp:12:3: error: argument -- is invalid",
        "ValueError is what I teach",
        "ValueError:x",
        "Loss: 5",
        "www.example.com: x",
        "the disk said No space left on device",
        "===training policy===",
        "E",
        "E1 ",
        "[rankx]: ValueError: x",
        "(a, b) ValueError: x",
    ] {
        assert_eq!(read(line), None, "{line}");
    }
}
