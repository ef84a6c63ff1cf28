"""scripts/gpu_check.sh, its part for ranks, where there is no GPU: what runs is a stand-in of each program that says what those
would. It shows which checks are made, that one which fails, does not run or does not end is told, and what is in the summary."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "gpu_check.sh"
PASSED = 'echo "[  PASSED  ] 1 test."'

TIMELINE = """Generating the file
Start (ns),Duration (ns),CorrId,Strm,Name
1000,1000,1,7,"products(int, float)"
1500,1000,2,8,ncclDevKernel_SendRecv(a)
3000,500,3,8,ncclDevKernel_SendRecv(a)
3100,9000,4,7,[CUDA memcpy Device-to-Host]
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.bin = self.folder / "build" / "bin"
        self.path = self.folder / "path"
        self.out = self.folder / "out"
        self.bin.mkdir(parents=True)
        self.path.mkdir()
        self.program(self.bin / "gpu_checks", "")
        self.program(self.bin / "dsmoe", "")
        self.program(self.path / "nvidia-smi", "")
        self.program(self.path / "ldd", "echo libnccl.so.2")
        self.program(self.path / "mpirun", "")
        (self.folder / "timeline").write_text(TIMELINE)
        self.program(self.path / "nsys", f"cat {self.folder}/timeline")
        self.program(self.bin / "multi_tests", PASSED)

    def program(self, path, text):
        path.write_text("#!/bin/bash\n" + text + "\n")
        path.chmod(0o755)

    def check(self, **environment):
        environment = {**os.environ, "PATH": f"{self.path}:{os.environ['PATH']}", "STEPS": "ranks", **environment}
        ran = subprocess.run(["bash", SCRIPT, self.folder / "build", self.out], env=environment, capture_output=True, text=True)
        summary = self.out / "summary.json"
        ranks = json.loads(summary.read_text()).get("ranks") if summary.exists() else None
        return ran.returncode, ran.stdout + ran.stderr, ranks

    def test_all_checks_of_all_ranks(self):
        code, text, ranks = self.check()
        self.assertEqual(code, 0, text)
        checks = {(c["check"], c["ranks"]) for c in ranks["checks"]}
        for name in ("MessagesAndSums", "Layer", "FiftySteps", "FiftyStepsWithZero1", "FiftyStepsWithZero2", "AKilledRank",
                     "ARunGoesOnWithAnyNumberOfRanks", "AnswersOfOneProcess", "AServersAnswersOfOneProcess"):
            self.assertTrue({(name, 2), (name, 4), (name, 8)} <= checks, name)
        self.assertIn(("DISABLED_UnderASanitizer", 2), checks)
        self.assertEqual({c["result"] for c in ranks["checks"]}, {"passed"})
        self.assertAlmostEqual(ranks["overlap"]["0"]["messages"], 1.5e-6)
        self.assertAlmostEqual(ranks["overlap"]["1"]["while_kernels_run"], 0.5e-6)

    def test_every_check_is_a_test(self):
        source = (SCRIPT.parents[1] / "tests" / "multi" / "gpu_test.cpp").read_text()
        for check in self.check()[2]["checks"]:
            self.assertIn(f"TEST_P(MultiGpu, {check['check']})", source)

    def test_what_fails_is_told(self):
        self.program(self.bin / "multi_tests", f"""case $* in
  *Layer/2) echo "gpu_test.cpp:7: Failure"; echo "[  FAILED  ] 1 test"; exit 3;;
  *AKilledRank/2) exit 124;;  # as after its time
  *AnswersOfOneProcess/2) echo "[  SKIPPED ] 1 test, listed below:";;
  *MessagesAndSums/2) echo "[==========] 0 tests ran.";;
  *) {PASSED};;
esac""")
        code, text, ranks = self.check(RANKS="2")
        self.assertNotEqual(code, 0)
        self.assertIn("gpu_test.cpp:7: Failure", text)
        results = {c["check"]: c["result"] for c in ranks["checks"]}
        self.assertEqual(results["Layer"], "failed")
        self.assertEqual(results["AKilledRank"], "failed")
        self.assertEqual(results["AnswersOfOneProcess"], "skipped")
        self.assertEqual(results["MessagesAndSums"], "failed", "a test that is not there")
        self.assertEqual(results["FiftySteps"], "passed")

    def test_a_build_without_nccl_proves_nothing(self):
        self.program(self.path / "ldd", "echo libc.so.6")
        code, text, ranks = self.check()
        self.assertNotEqual(code, 0)
        self.assertIn("DSMOE_NCCL", text)
        self.assertIsNone(ranks)


if __name__ == "__main__":
    unittest.main()
