-- trim_step: how many events there are between two entries of the trim index (trim_index.lua): a hundredth of the cap.
local hundredth = ARGV[3] / 100
local STEP = hundredth < 5000 and hundredth - hundredth % 1 or 5000  -- operators, because calls cost more
