// All of one file into one segment.
#pragma once
#include "fill_job.hpp"
#include "temp.hpp"

namespace testing {

struct FileJob : Job {
  FileJob(tc::Pool& pool, const TempFile& file) : Job(pool, {file.source().size}) {
    files = {file.source()};
    pieces = {{0, tc::PieceKind::kFile, 0, files[0].size, 0, 0, 0}};
  }
};

}  // namespace testing
