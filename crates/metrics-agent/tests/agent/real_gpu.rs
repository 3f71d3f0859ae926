//! For a machine with a real GPU and NVIDIA's driver: `cargo test -p metrics-agent -- --ignored --nocapture real_gpu`.

use std::process::Command;

use proto::metrics::v1::{Metric, State};

use crate::process::{Start, is};

/// Nothing rests on the ABI fake here.
#[tokio::test]
#[ignore = "needs a machine with an NVIDIA GPU, its driver and nvidia-smi; passed on an H100 on 2026-11-27; the other tests use an ABI fake"]
async fn real_gpu_is_read_as_nvidia_smi_reads_it() {
    let agent = Start::without_library()
        .library("libnvidia-ml.so.1")
        .with("--interval=1")
        .with("--processes")
        .start();
    let mut subscriber = agent.subscribe().await;
    let snapshot = subscriber.until(|it| it.sequence >= 3 && is(it, 0, State::Fresh)).await;
    let query =
        "index,uuid,name,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,clocks.sm";
    let smi = Command::new("nvidia-smi")
        .args([&format!("--query-gpu={query}"), "--format=csv,noheader,nounits"])
        .output()
        .unwrap();
    println!("{query}\n{}", String::from_utf8_lossy(&smi.stdout));
    println!("{}", snapshot.source.as_ref().unwrap().backend);
    for subject in &snapshot.subjects {
        println!("{} {} {}", subject.index, subject.id, subject.model);
        for reading in &subject.readings {
            println!(
                "  {:?} {:?} {:?} {:?}",
                reading.metric(),
                reading.value,
                reading.unit(),
                reading.state()
            );
        }
    }
    let smi = String::from_utf8(smi.stdout).unwrap();
    let rows: Vec<Vec<&str>> = smi.lines().map(|line| line.split(", ").collect()).collect();
    let devices: Vec<_> = snapshot.subjects.iter().filter(|it| it.parent_id.is_empty()).collect();
    assert_eq!(devices.len(), rows.len());
    for (device, row) in devices.iter().zip(rows) {
        let value = |metric: Metric| {
            device.readings.iter().find(|it| it.metric() == metric).and_then(|it| it.value).unwrap()
        };
        assert_eq!((device.id.as_str(), device.model.as_str()), (row[1], row[2]));
        let mib = value(Metric::MemoryTotal) / 1_048_576.0;
        assert!((mib - row[5].parse::<f64>().unwrap()).abs() <= 1.0, "{mib} {row:?}");
        let celsius: f64 = row[7].parse().unwrap();
        assert!((value(Metric::Temperature) - celsius).abs() <= 5.0, "{row:?}");
        assert!((0.0..=1.0).contains(&value(Metric::Utilization)));
    }
    let (_, page) = agent.page("/metrics");
    println!("{page}");
}
