//! The lone caller, by criterion: one acquire and one release, nobody else there.

use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use leasehold_bench::{Contestant, Server};
use tokio::runtime::Builder;

fn lone_caller(criterion: &mut Criterion) {
    let server = Server::start().expect("redis-server is installed");
    for (title, mut builder) in
        [("current_thread", Builder::new_current_thread()), ("multi_thread", Builder::new_multi_thread())]
    {
        let runtime = builder.enable_all().build().expect("a runtime");
        let contestants = runtime.block_on(Contestant::all(&server)).expect("the server answers");
        let mut group = criterion.benchmark_group(format!("lone caller, {title}"));
        for contestant in contestants {
            group.bench_function(contestant.name(), |bench| {
                bench.iter_custom(|cycles| {
                    let contestant = contestant.clone();
                    // A task, as in a program: `block_on` itself runs outside the workers.
                    let task = runtime.spawn(async move {
                        let started = Instant::now();
                        for _ in 0..cycles {
                            contestant.cycle("lone").await.expect("a cycle");
                        }
                        started.elapsed()
                    });
                    runtime.block_on(task).expect("no panic")
                });
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2));
    targets = lone_caller
}
criterion_main!(benches);
